-- The processes among $3 that hold a lock for writing, or for locking rows, on the relations with schemas $1 and
-- names $2. With $4, also those that have written anything: a transaction that has written holds the lock on its own
-- transaction id.
PREPARE lockers (name[], name[], integer[], boolean) AS
:relations
SELECT DISTINCT l.pid FROM pg_locks l WHERE l.pid = ANY ($3) AND (:holds_lock
  OR ($4 AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted));

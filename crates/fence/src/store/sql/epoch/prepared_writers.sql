-- The prepared transactions that hold a lock on the relations with schemas $1 and names $2.
PREPARE prepared_writers (name[], name[]) AS
:relations
SELECT DISTINCT p.gid FROM pg_locks l :prepared_owner
WHERE l.pid IS NULL AND :has_prepared AND :holds_lock;

-- The current epoch of resource $1, if the guard has permitted a write to it in the open transaction of the process
-- with pid $2. $3: name of the lock of its family.
-- In that case the process holds one of these: the resource's lock; its process lock, with an admission on which the
-- guard may have relied; or a lock on the row of that admission. The first row lock here waits for every other
-- holder of the row, because only the guard's lock does not conflict with it.
PREPARE guarded_write (text, integer, text) AS
WITH theirs AS MATERIALIZED (SELECT a.generation, a.token FROM :guarded_admissions FOR NO KEY UPDATE OF a),
  free AS MATERIALIZED (SELECT a.pid FROM :guarded_admissions
    AND (a.generation, a.token) IN (SELECT generation, token FROM theirs) FOR UPDATE OF a SKIP LOCKED)
SELECT e.generation, e.token FROM fencegate_state.epoch e WHERE e.resource = $1 AND (
  (SELECT count(*) FROM theirs) > (SELECT count(*) FROM free) OR EXISTS (
    SELECT FROM pg_locks l WHERE l.pid = $2 AND l.locktype = 'advisory' AND l.granted
    AND l.database = :this_database AND ((:is_lock) OR (l.objsubid = 2
      AND l.classid::bigint = hashtext($3)::bigint & 4294967295 AND l.objid = $2
      AND EXISTS (SELECT FROM :guarded_admissions)))));

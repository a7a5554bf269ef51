-- Terminates those of the processes, $1 pid and $2 start, that still have the same start, are in this database, and
-- that this role may signal. One row for each: whether it was signalled. Does nothing if the current epoch of
-- resource $3 is below generation $4 and token $5. Spares a process whose own proxy has released it since: the
-- process may hold a newer admission.
-- Marks the admission as ending. Such a row is deleted only after its process has ended: the process's own proxy,
-- even if it reads the row at the same moment, skips it and does not release the process. Rows that another
-- transaction is deleting or marking are left to the next look. NO KEY: the guard's lock on the row protects the row
-- but not the process.
PREPARE terminate (integer[], numeric[], text, bigint, bigint) AS
WITH due AS (UPDATE fencegate_state.admission SET ending = true WHERE ctid = ANY (ARRAY(
  SELECT a.ctid FROM fencegate_state.admission a JOIN LATERAL pg_stat_get_activity(a.pid) s
    ON s.backend_start = a.backend_start AND s.datid = fencegate.own_database()
    LEFT JOIN pg_roles t ON t.oid = s.usesysid
  WHERE a.resource = $3 AND (a.generation, a.token) < ($4, $5) AND :is_of_this_database
    AND (a.pid, extract(epoch FROM a.backend_start)) NOT IN (SELECT * FROM unnest($1, $2)) IS FALSE
    AND :may_terminate
    AND EXISTS (SELECT FROM fencegate_state.epoch e WHERE e.resource = $3 AND (e.generation, e.token) >= ($4, $5))
  FOR NO KEY UPDATE OF a SKIP LOCKED)) RETURNING pid)
SELECT pid, pg_terminate_backend(pid) FROM (SELECT DISTINCT pid FROM due) due;

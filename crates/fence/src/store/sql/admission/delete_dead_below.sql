-- Deletes the admissions to resource $1, below the epoch of generation $2 and token $3, of dead processes and of
-- other databases. The rows are the deleted ones. Skips rows that another transaction is deleting.
PREPARE delete_dead_below (text, bigint, bigint) AS
DELETE FROM fencegate_state.admission WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate_state.admission a
WHERE a.resource = $1 AND (a.generation, a.token) < ($2, $3) AND NOT :living FOR UPDATE OF a SKIP LOCKED))
RETURNING pid, extract(epoch FROM backend_start) AS backend_start, token;

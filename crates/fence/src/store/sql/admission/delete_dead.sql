-- Deletes the admissions of dead processes and of other databases. The rows are the deleted ones. Skips rows that
-- another transaction is deleting.
PREPARE delete_dead AS
DELETE FROM fencegate_state.admission WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate_state.admission a
WHERE true AND NOT :living FOR UPDATE OF a SKIP LOCKED))
RETURNING pid, extract(epoch FROM backend_start) AS backend_start, token;

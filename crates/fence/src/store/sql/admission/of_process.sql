-- The admissions of the process with pid $1 and backend_start $2.
PREPARE of_process (integer, numeric) AS
SELECT :granted FROM fencegate_state.admission a WHERE a.pid = $1 AND extract(epoch FROM a.backend_start) = $2;

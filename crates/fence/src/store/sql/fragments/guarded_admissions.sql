-- The admissions to resource $1 of the process with pid $2.
fencegate_state.admission a WHERE a.pid = $2 AND a.resource = $1 AND :living

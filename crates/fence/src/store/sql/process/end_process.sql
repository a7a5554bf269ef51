-- Terminates the server process :pid, if it still started at :'backend_start'.
SELECT pg_catalog.pg_terminate_backend(s.pid) FROM pg_catalog.pg_stat_get_activity(:pid) s
WHERE extract(epoch FROM s.backend_start) = :'backend_start'::pg_catalog.numeric;

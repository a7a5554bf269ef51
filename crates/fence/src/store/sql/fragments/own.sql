-- Columns: the connection's own server process and its start.
pg_backend_pid() AS pid,
(SELECT extract(epoch FROM backend_start) FROM pg_stat_get_activity(pg_backend_pid())) AS backend_start

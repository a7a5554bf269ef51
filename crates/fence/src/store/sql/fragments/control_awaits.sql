-- True if the control process waits for the relation of lock l.
l.relation IN (SELECT w.relation FROM pg_locks w JOIN pg_stat_get_activity(:control_pid) c ON c.pid = w.pid
WHERE extract(epoch FROM c.backend_start) = :'control_start'::numeric AND w.locktype = 'relation' AND NOT w.granted
  AND w.database = :this_database)

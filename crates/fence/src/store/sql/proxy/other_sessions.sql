-- One row: whether a client is connected to this database, apart from the sessions with these :pids and :starts and
-- any proxy's control connections. A lost proxy that still has sessions has such a client.
SELECT EXISTS (SELECT FROM pg_stat_get_activity(NULL) s LEFT JOIN pg_roles t ON t.oid = s.usesysid
WHERE s.datid = :this_database AND s.backend_type IS NOT DISTINCT FROM 'client backend' AND NOT :is_control_connection
  AND (s.pid, extract(epoch FROM s.backend_start)) NOT IN (SELECT * FROM unnest(:pids, :starts)) IS NOT FALSE)
AS exist;

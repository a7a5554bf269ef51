-- Publishes the :fingerprints of the fences that this :'proxy' enforces. Deletes the rows of proxies that were lost
-- long ago, and lost rows of other databases. No rows.
DELETE FROM fencegate_state.proxy WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate_state.proxy a
  WHERE NOT :living AND (a.announced < clock_timestamp() - :lost_proxy_counts OR NOT :is_of_this_database)
  FOR UPDATE OF a SKIP LOCKED));
INSERT INTO fencegate_state.proxy AS p (id, pid, backend_start, enforced)
  SELECT :'proxy', a.pid, a.backend_start, ARRAY[:fingerprints]::text[]
  FROM pg_stat_get_activity(pg_backend_pid()) a
  ON CONFLICT (id) DO UPDATE SET pid = excluded.pid, backend_start = excluded.backend_start,
    enforced = excluded.enforced, announced = clock_timestamp(),
    system_identifier = excluded.system_identifier, database = excluded.database;

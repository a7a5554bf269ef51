-- The processes that block the control process :control_pid, which started at :'control_start': holders of the
-- resource's lock, and processes ahead of it that wait for the exclusive lock. signalled: the process was
-- terminated. The second statement's rows are prepared transactions, which only an operator can end.
-- Spares control connections, including those of other proxies with different roles, because an Admit or a Publish
-- holds the lock only briefly. Spares the worker of a subscription, and a process that acquires the lease of the
-- resource, for 10 s, as end_holders does.
-- The control process is identified by its pid and its start, because another process may reuse the pid.
SELECT s.pid, coalesce(t.rolname, s.backend_type) AS role,
  CASE WHEN :may_terminate AND NOT coalesce(s.xact_start > clock_timestamp() - interval '10 s'
    AND (s.backend_type LIKE 'logical replication%'
      OR EXISTS (SELECT FROM pg_locks m WHERE m.pid = s.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock'
        AND m.database = :this_database AND m.relation = to_regclass('fencegate_state.leased'))
    AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND l.mode = 'ExclusiveLock' AND :is_lock_here)
    AND fencegate.lease_candidate(t.oid, :'resource')), false) THEN pg_terminate_backend(s.pid) END AS signalled,
  coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query
FROM (SELECT DISTINCT unnest(pg_blocking_pids(c.pid)) AS pid FROM pg_stat_get_activity(:control_pid) c
  WHERE extract(epoch FROM c.backend_start) = :'control_start'::numeric) b
JOIN pg_stat_get_activity(NULL) s ON s.pid = b.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid
WHERE NOT :is_control_connection
AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND (l.granted OR l.mode = 'ExclusiveLock') AND :is_lock_here);
SELECT DISTINCT p.gid FROM pg_locks l :prepared_owner WHERE l.pid IS NULL AND :is_lock_here;

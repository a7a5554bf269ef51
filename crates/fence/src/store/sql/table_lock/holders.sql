-- The processes that hold an exclusive lock (is_exclusive_lock.sql) or wait for one, at most :described. signalled: the
-- process was terminated, because it :is_named. The second statement's rows are the prepared transactions. Omits
-- control connections and autovacuum, which yields by itself.
-- :awaited and :blocks are conditions on lock l, :is_named is one on process s. LIMIT applies before processes are
-- terminated.
SELECT f.*, CASE WHEN f.may_end AND f.is_named THEN pg_terminate_backend(f.pid) END AS signalled
FROM (SELECT s.pid, extract(epoch FROM s.backend_start) AS backend_start, h.mode, h.granted, c.relname AS table,
    coalesce(t.rolname, s.backend_type) AS role, o.is_own, :is_named AS is_named,
    coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query,
    NOT o.is_own AND coalesce(:may_terminate, false) AS may_end, count(*) OVER () AS processes
  FROM (SELECT DISTINCT ON (l.pid) l.pid, l.mode, l.granted, l.relation FROM pg_locks l
    WHERE :is_exclusive_lock AND :blocks ORDER BY l.pid, l.granted DESC, l.relation, l.mode) h
  JOIN pg_class c ON c.oid = h.relation JOIN pg_stat_get_activity(NULL) s ON s.pid = h.pid
  LEFT JOIN pg_roles t ON t.oid = s.usesysid
  CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND l.locktype = 'advisory'
    AND l.granted AND l.database = :this_database AND :is_lock) AS is_own) o
  WHERE NOT coalesce(:is_control_connection, false) AND s.backend_type <> 'autovacuum worker'
  ORDER BY h.granted DESC, s.pid LIMIT :described) f;
SELECT DISTINCT p.gid FROM pg_locks l :prepared_owner WHERE l.pid IS NULL AND :is_exclusive_lock LIMIT :described;

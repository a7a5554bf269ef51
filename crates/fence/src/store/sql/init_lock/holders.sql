-- The processes that hold the lock of init or wait for it, holders first. With :ends, terminates those that cannot
-- be commands; signalled: it did. The second statement's rows are prepared transactions that hold the lock.
-- A command runs as a superuser, or as a role that owns the schemas or can get their owner's rights. If there are no
-- schemas yet, it runs as a role that may create them. The owner of a guarded table may also run guard, but only
-- briefly, because its process counts as a stranger's.
SELECT f.*, CASE WHEN :ends AND NOT f.is_command AND f.may_end THEN pg_terminate_backend(f.pid) END AS signalled
FROM (SELECT s.pid, h.granted, coalesce(t.rolname, s.backend_type) AS role, s.application_name AS application,
    coalesce(t.rolsuper OR t.rolcreaterole
      OR EXISTS (SELECT FROM pg_namespace n WHERE n.nspname IN ('fencegate', 'fencegate_state')
        AND pg_has_role(t.oid, n.nspowner, 'MEMBER'))
      OR to_regnamespace('fencegate') IS NULL AND has_database_privilege(t.oid, current_database(), 'CREATE'), true)
      AS is_command,
    coalesce(:may_terminate, false) AS may_end
  FROM (SELECT l.pid, bool_or(l.granted) AS granted FROM pg_locks l WHERE :is_lock_here
    AND l.pid <> pg_backend_pid() GROUP BY l.pid) h
  JOIN pg_stat_get_activity(NULL) s ON s.pid = h.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid) f
ORDER BY f.granted DESC, f.pid;
SELECT DISTINCT p.gid FROM pg_locks l :prepared_owner WHERE l.pid IS NULL AND :is_lock_here;

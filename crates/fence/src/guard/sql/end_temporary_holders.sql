-- The processes that hold locks on temporary objects in a schema with such a dependent: only the session that owns the
-- schema uses these objects. With :ends, terminates those that this role may terminate; signalled: it did.
WITH place AS MATERIALIZED (SELECT DISTINCT z.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
    JOIN pg_namespace z ON z.oid = :dependent_schema
  WHERE n.nspname = 'fencegate' AND starts_with(z.nspname, 'pg_temp_') AND z.oid <> pg_my_temp_schema())
SELECT s.pid, coalesce(t.rolname, s.backend_type) AS role, s.application_name AS application,
  CASE WHEN :ends AND :may_terminate THEN pg_terminate_backend(s.pid) END AS signalled
FROM (SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    JOIN place ON place.oid = c.relnamespace WHERE l.locktype = 'relation' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid <> pg_backend_pid()) h
JOIN pg_stat_get_activity(NULL) s ON s.pid = h.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid ORDER BY s.pid;

-- Columns: missing_grant, as GRANT names it, and lacking, privileges in fencegate's schemas. Null if nothing is
-- missing.
-- The roles that the control role must be a member of; the functions of the server that the fence calls, which
-- PUBLIC may execute by default; fencegate's own functions that the fence calls; the privileges that it needs on its
-- tables.
current_database() AS database, current_user AS role,
(SELECT min(it) FROM (SELECT r::text FROM unnest(ARRAY['pg_read_all_stats', 'pg_signal_backend']::name[]) r
    WHERE NOT pg_has_role(current_user, r, 'USAGE')
  UNION ALL SELECT 'EXECUTE ON FUNCTION pg_catalog.' || p.oid::regprocedure FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.oid::regprocedure::text IN (
      'pg_advisory_xact_lock(bigint)', 'pg_advisory_xact_lock_shared(bigint)',
      'pg_try_advisory_xact_lock(bigint)', 'pg_try_advisory_xact_lock(integer,integer)',
      'pg_blocking_pids(integer)', 'pg_control_system()', 'pg_is_in_recovery()',
      'pg_notification_queue_usage()', 'pg_notify(text,text)', 'pg_postmaster_start_time()',
      'pg_prepared_xact()', 'pg_stat_get_activity(integer)', 'pg_terminate_backend(integer,bigint)')
    AND NOT has_function_privilege(p.oid, 'EXECUTE')) missing(it)) AS missing_grant,
(SELECT string_agg(it, ', ' ORDER BY it) FROM (SELECT 'USAGE on the schema ' || n.nspname FROM pg_namespace n
    WHERE n.nspname IN ('fencegate', 'fencegate_state') AND NOT has_schema_privilege(n.oid, 'USAGE')
  UNION ALL SELECT 'EXECUTE on ' || p.proname FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate')
    AND p.proname IN ('own_system_identifier', 'own_database', 'lease_candidate')
    AND NOT has_function_privilege(p.oid, 'EXECUTE')
  UNION ALL SELECT n.privilege || ' on ' || n.name FROM (VALUES
      ('lease', 'SELECT'), ('epoch', 'SELECT'), ('epoch', 'INSERT'), ('epoch', 'UPDATE'),
      ('admission', 'SELECT'), ('admission', 'INSERT'), ('admission', 'UPDATE'), ('admission', 'DELETE'),
      ('proxy', 'SELECT'), ('proxy', 'INSERT'), ('proxy', 'UPDATE'), ('proxy', 'DELETE'),
      ('reset', 'INSERT')) n(name, privilege)
    JOIN pg_class c ON c.relnamespace = to_regnamespace('fencegate_state') AND c.relname = n.name
    WHERE NOT has_table_privilege(c.oid, n.privilege)) missing(it)) AS lacking

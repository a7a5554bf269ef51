-- One row about the current role and the objects other than triggers. :guard_columns and :notice_columns: see
-- sealed_content.sql. :event_triggers and :guard_functions are names.
SELECT current_database() AS database, current_setting('server_version_num') AS version,
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
  (SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = 'fencegate') AS owner,
  (SELECT pg_has_role(current_user, nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'fencegate')
    AS owns_schema,
  NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate')
    AND p.proname = 'claim') AS outdated, :guard_columns, :notice_columns,
  (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate')
    AND p.proname IN (:guard_functions) AND p.proname <> 'await_lock'
    AND NOT (has_function_privilege('public', p.oid, 'EXECUTE')
      AND has_schema_privilege('public', p.pronamespace, 'USAGE'))) AS unusable,
  (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'fencegate' AND p.proname IN (:guard_functions) AND p.proowner <> n.nspowner) AS others,
  (SELECT count(*) FROM pg_event_trigger WHERE evtname IN (:event_triggers)) AS event_triggers,
  (SELECT count(*) FROM pg_event_trigger WHERE evtname IN (:event_triggers) AND evtenabled = 'A')
    AS enabled_event_triggers;

-- First Query of a new control connection: its settings, then the probe. The last statement's row has the
-- privileges that the connection lacks, its process, its server, and the version of fencegate's schema.
-- JIT compilation of a Query takes longer than its execution. A plan made while a table is small also runs when it
-- is large, so no plan may scan a whole table that has an index. A Query that waits for a lock fails after the
-- :grace (55P03), so that its caller can find the lock holder; most Queries set their own limit.
SET standard_conforming_strings = on; SET application_name = 'fencegate control';
SET search_path = pg_catalog; SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off; SET jit = off; SET synchronous_commit = :synchronous_commit;
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET lock_timeout = :grace;
SELECT set_config(name, '0', false) FROM unnest(ARRAY['statement_timeout',
  'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout']) name
  WHERE current_setting(name, true) IS NOT NULL;
SELECT :lacking, :own,
  (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
  extract(epoch FROM pg_postmaster_start_time()) AS postmaster_start,
  CASE WHEN to_regnamespace('fencegate') IS NOT NULL
    THEN coalesce(obj_description(to_regnamespace('fencegate'), 'pg_namespace'), 'of unknown version')
  END AS version;

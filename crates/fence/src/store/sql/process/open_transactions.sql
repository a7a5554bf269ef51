-- The open transactions of this database, including prepared ones. Includes transactions without a lock on the
-- relation, because they may still take it, for example in a function that sleeps.
SELECT a.pid || ' ' || a.xact_start AS transaction FROM pg_stat_activity a
WHERE a.datid = :this_database AND a.backend_type = 'client backend' AND a.xact_start IS NOT NULL
  AND a.pid <> pg_backend_pid()
UNION ALL SELECT p.transaction::text FROM pg_prepared_xacts p WHERE p.database = current_database();

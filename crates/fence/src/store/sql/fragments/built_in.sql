-- The schemas that come with the server and with fencegate.
SELECT s.oid FROM pg_namespace s WHERE s.nspname IN ('pg_catalog', 'information_schema', 'fencegate')

-- True if the acting role may use schema n. PostgreSQL reports USAGE on a temporary schema only to its own session.
(starts_with(n.nspname, 'pg_temp_') OR has_schema_privilege(acting.oid, n.oid, 'USAGE'))

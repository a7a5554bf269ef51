-- True if the role who may use schema n. PostgreSQL reports USAGE on a temporary schema only to its own session.
(starts_with(n.nspname, 'pg_temp_') OR has_schema_privilege(who.oid, n.oid, 'USAGE'))

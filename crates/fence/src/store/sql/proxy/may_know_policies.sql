-- One row: whether this role may read the tables that other_policies.sql reads. By oid: a name would need USAGE on
-- the schema.
SELECT has_schema_privilege(n.oid, 'USAGE') AND (SELECT count(*) = 2 FROM pg_class c WHERE c.relnamespace = n.oid
  AND c.relname IN ('epoch', 'proxy') AND has_table_privilege(c.oid, 'SELECT')) AS may
FROM pg_namespace n WHERE n.nspname = 'fencegate_state';

-- The relations of a policy's entry, one per row: the table :'name' of :'schema' first, then those that inherit from
-- it.
WITH RECURSIVE named(schema, name) AS (SELECT * FROM unnest(:schemas, :table_names)),
tree(oid, level) AS (
  SELECT c.oid, 0 FROM named JOIN pg_namespace n ON n.nspname = named.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
    WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
  UNION SELECT h.inhrelid, tree.level + 1 FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid)
SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind,
  c.relispartition AS is_partition, pg_partition_root(c.oid)::oid AS root,
  pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter,
  EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid
          AND h.inhparent NOT IN (SELECT oid FROM tree)) AS has_foreign_parent
FROM (SELECT oid, min(level) AS level FROM tree GROUP BY oid) t JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY t.level, c.oid;

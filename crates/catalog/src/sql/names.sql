-- Which of these tables and functions exist. The first statement's row: whether the database has the schema
-- fencegate. The second's, by part: table, function, and similar, existing tables whose names are about as long as
-- that of a missing one. Any role that can connect may run it.
-- The tables with :schemas and :names; similar names for :most_suggested missing tables, at most :most_similar.
SELECT to_regnamespace('fencegate') IS NOT NULL AS prepared;
WITH :named_relations, :fenced_functions, relation AS (
  SELECT n.nspname AS schema, c.relname AS name, c.relispartition FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN :fenced_kinds),
missing AS (SELECT named.schema, named.name FROM named
  WHERE NOT EXISTS (SELECT FROM relation r WHERE r.schema = named.schema AND r.name = named.name)
  ORDER BY 1, 2 LIMIT :most_suggested)
SELECT 'table' AS part, r.schema, r.name FROM named JOIN relation r USING (schema, name)
UNION ALL SELECT 'function', n.nspname, p.proname FROM fenced_function f JOIN pg_proc p ON p.oid = f.oid
  JOIN pg_namespace n ON n.oid = p.pronamespace
UNION ALL (SELECT 'similar', r.schema, r.name FROM relation r WHERE NOT r.relispartition
  AND r.schema NOT IN ('information_schema', 'fencegate', 'fencegate_state') AND r.schema NOT LIKE 'pg\_%'
  AND EXISTS (SELECT FROM missing m WHERE abs(length(m.name::text) - length(r.name::text)) <= 3)
  ORDER BY 2, 3 LIMIT :most_similar);

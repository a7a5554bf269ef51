-- Common table expressions: the relations named by the first two parameters, with all relations that inherit from
-- them, and whether a name does not exist (yet). Reads the catalog, because to_regclass fails if the control role
-- has no USAGE on the schema.
WITH RECURSIVE :named, relation(oid) AS (
  SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
  UNION SELECT h.inhrelid FROM relation JOIN pg_inherits h ON h.inhparent = relation.oid
), unresolved AS (SELECT FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n
  JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname = named.schema AND c.relname = named.name))

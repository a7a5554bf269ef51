-- Objects that CASCADE may drop from the tables with :schemas and :names, one row for each relation: a part of the
-- fenced table by_schema.by_name (a constraint, default, policy or partition) depends on the relation, along pg_depend.
WITH RECURSIVE :named_relations,
part(by_oid, classid, objid) AS (
  SELECT c.oid, 'pg_class'::regclass::oid, c.oid FROM named
    JOIN pg_namespace n ON n.nspname = named.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
  UNION SELECT part.by_oid, d.classid, d.objid FROM part JOIN pg_depend d
    ON d.refclassid = part.classid AND d.refobjid = part.objid AND d.deptype IN ('a', 'i', 'P', 'S')),
needed AS (
  SELECT * FROM part
  UNION SELECT needed.by_oid, d.refclassid, d.refobjid FROM needed JOIN pg_depend d
    ON d.classid = needed.classid AND d.objid = needed.objid)
SELECT n.nspname AS schema, c.relname AS name, bn.nspname AS by_schema, b.relname AS by_name
FROM needed JOIN pg_class c ON c.oid = needed.objid AND needed.classid = 'pg_class'::regclass
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class b ON b.oid = needed.by_oid JOIN pg_namespace bn ON bn.oid = b.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.oid <> b.oid LIMIT :limit;

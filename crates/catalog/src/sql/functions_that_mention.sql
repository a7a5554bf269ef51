-- The functions whose source mentions a table with :schemas and :names by its name, or whose body depends on it; and
-- those that mention or need one of these, which are not direct. A name in a comment, or of a table in another
-- schema, counts too. Names become regular expressions.
WITH RECURSIVE :named_relations, source AS MATERIALIZED (
  SELECT p.oid, n.nspname AS schema, p.proname AS name, lower(p.prosrc) AS text
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencegate')),
mention(oid, table_schema, table_name, direct) AS (
  SELECT s.oid, named.schema, named.name, true FROM source s
  JOIN named ON strpos(s.text, lower(named.name)) > 0 AND s.text ~ (
      '(^|[^[:alnum:]_$])' || regexp_replace(lower(named.name::text), '[^[:alnum:]_]', '.', 'g')
      || '($|[^[:alnum:]_$])')
    OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = s.oid
      AND d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(format('%I.%I', named.schema, named.name)))
  UNION SELECT s.oid, m.table_schema, m.table_name, false FROM mention m JOIN source c ON c.oid = m.oid
  JOIN source s ON s.oid <> c.oid AND (strpos(s.text, lower(c.name)) > 0 AND s.text ~ (
      '(^|[^[:alnum:]_$])' || regexp_replace(lower(c.name::text), '[^[:alnum:]_]', '.', 'g') || '"?\s*\(')
    OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = s.oid
      AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = c.oid)))
SELECT s.schema, s.name, m.table_schema, m.table_name, bool_or(m.direct) AS direct
FROM mention m JOIN source s ON s.oid = m.oid GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;

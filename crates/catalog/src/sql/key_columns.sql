-- The existing key columns, one per row, of the tables with :schemas and :names: the columns :keys, with the :arguments
-- of the guard's triggers. Includes the definition of the column in child tables and in their unique indexes, because a
-- write to the table writes to its children. Types by pg_type.oid; the operator class of varchar (1043) is that of text
-- (25). Objects with an OID below 16384 come with the server (FirstNormalObjectId). Bits of pg_trigger.tgtype: for each
-- row 1, before 2, INSERT 4, UPDATE 16.
WITH RECURSIVE named(schema, name, key, arguments) AS (SELECT * FROM unnest(:schemas, :names, :keys, :arguments)),
family(root, oid) AS (
  SELECT c.oid, c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
  UNION SELECT family.root, h.inhrelid FROM family JOIN pg_inherits h ON h.inhparent = family.oid)
SELECT named.schema, named.name,
  b.oid AS type,
  CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier,
  EXISTS (SELECT FROM family JOIN pg_attribute o ON o.attrelid = family.oid AND o.attname = named.key
    WHERE family.root = c.oid AND o.attgenerated <> '') AS generated,
  EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic)
    OR EXISTS (SELECT FROM family JOIN pg_attribute o ON o.attrelid = family.oid AND o.attname = named.key
      JOIN pg_index i ON i.indrelid = family.oid AND i.indisunique
      CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[]) AS k(attnum, opclass, indcollation)
      JOIN pg_opclass p ON p.oid = k.opclass LEFT JOIN pg_collation l ON l.oid = k.indcollation
      WHERE family.root = c.oid AND k.attnum = o.attnum AND (NOT l.collisdeterministic OR NOT p.opcdefault
        OR p.opcnamespace <> 'pg_catalog'::regnamespace
        OR p.opcintype <> CASE b.oid WHEN 1043 THEN 25 ELSE b.oid END)) AS folds,
  EXISTS (SELECT FROM pg_cast k WHERE k.oid >= 16384 AND k.castmethod = 'f'
    AND k.castsource IN (20, 21, 23, 25, 1043, 2950) AND k.casttarget IN (20, 21, 23, 25, 1043, 2950)) AS recast,
  (SELECT count(*) FROM pg_attribute p WHERE p.attrelid = c.oid AND p.attnum BETWEEN 1 AND a.attnum - 1
    AND NOT p.attisdropped) AS place,
  EXISTS (SELECT FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid AND f.proname = 'guard'
    JOIN pg_namespace s ON s.oid = f.pronamespace AND s.nspname = 'fencegate'
    WHERE g.tgrelid = c.oid AND g.tgenabled = 'A' AND g.tgqual IS NULL AND g.tgtype & 5 = 5
    AND substring(g.tgargs FROM 1 FOR octet_length(named.arguments)) = named.arguments) AS guarded,
  (SELECT min(g.tgname) FROM family JOIN pg_trigger g ON g.tgrelid = family.oid WHERE family.root = c.oid
    AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 3 = 3
    AND g.tgtype & 20 <> 0) AS changed_by
FROM named JOIN pg_namespace n ON n.nspname = named.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = named.key AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END;

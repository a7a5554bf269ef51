-- The tables calling, all objects that depend on a function, with parts of a relation replaced by the relation; and
-- calls, the relations that call it, each with the calling operations, one letter each.
-- An operator class calls the functions of its members, a domain those of its constraints, and a composite type
-- those of its columns. Reading a view calls the view's functions.
:fenced_functions,
calling(function, classid, objid) AS (
  SELECT f.oid, 'pg_proc'::regclass::oid, f.oid FROM fenced_function f
  UNION SELECT calling.function, next.classid, next.objid FROM calling CROSS JOIN LATERAL (
    SELECT d.classid, d.objid FROM pg_depend d
      WHERE d.refclassid = calling.classid AND d.refobjid = calling.objid
      AND (calling.classid <> 'pg_class'::regclass
        OR (SELECT c.relkind = 'c' OR c.relkind = 'v' AND d.classid IN ('pg_proc'::regclass, 'pg_rewrite'::regclass)
          FROM pg_class c WHERE c.oid = calling.objid))
    UNION ALL SELECT 'pg_class'::regclass::oid, v.oid FROM pg_rewrite r JOIN pg_class v ON v.oid = r.ev_class
      WHERE calling.classid = 'pg_rewrite'::regclass AND r.oid = calling.objid AND r.ev_type = '1' AND v.relkind = 'v'
    UNION ALL SELECT d.refclassid, d.refobjid FROM pg_depend d
      WHERE d.classid = calling.classid AND d.objid = calling.objid AND d.deptype IN ('a', 'i')
      AND (d.classid IN ('pg_amop'::regclass, 'pg_amproc'::regclass)
          AND d.refclassid IN ('pg_opclass'::regclass, 'pg_opfamily'::regclass)
        OR d.classid = 'pg_constraint'::regclass AND d.refclassid = 'pg_type'::regclass
        OR d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_type'::regclass AND d.deptype = 'i')) next),
calls(function, relation, operations) AS (
  SELECT c.function, r.ev_class, CASE r.ev_type WHEN '2' THEN 'u' WHEN '3' THEN 'i' WHEN '4' THEN 'd'
    ELSE (SELECT CASE v.relkind WHEN 'm' THEN 'i' ELSE 'riud' END FROM pg_class v WHERE v.oid = r.ev_class) END
    FROM calling c JOIN pg_rewrite r ON r.oid = c.objid WHERE c.classid = 'pg_rewrite'::regclass
  UNION SELECT c.function, a.adrelid, 'iux' FROM calling c JOIN pg_attrdef a ON a.oid = c.objid
    WHERE c.classid = 'pg_attrdef'::regclass
  UNION SELECT c.function, k.conrelid, 'iux' FROM calling c JOIN pg_constraint k ON k.oid = c.objid
    WHERE c.classid = 'pg_constraint'::regclass AND k.conrelid <> 0
  UNION SELECT c.function, coalesce(i.indrelid, r.oid), 'iux' FROM calling c JOIN pg_class r ON r.oid = c.objid
    LEFT JOIN pg_index i ON i.indexrelid = r.oid
    WHERE c.classid = 'pg_class'::regclass AND r.relkind IN ('r', 'p', 'f', 'i', 'I')
  UNION SELECT c.function, t.tgrelid, concat(CASE WHEN t.tgtype & 4 <> 0 THEN 'i' END,
      CASE WHEN t.tgtype & 8 <> 0 THEN 'd' END, CASE WHEN t.tgtype & 16 <> 0 THEN 'u' END,
      CASE WHEN t.tgtype & 32 <> 0 THEN 't' END) FROM calling c JOIN pg_trigger t ON t.oid = c.objid
    WHERE c.classid = 'pg_trigger'::regclass
  UNION SELECT c.function, p.polrelid, 'riud' FROM calling c JOIN pg_policy p ON p.oid = c.objid
    WHERE c.classid = 'pg_policy'::regclass)

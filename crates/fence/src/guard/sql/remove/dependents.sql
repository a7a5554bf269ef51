-- A row per other object that depends on one of these, as far as PostgreSQL records dependencies. on_token: it
-- depends on the function that may stay. Objects that belong to a table, such as indexes, are dropped with it;
-- nothing belongs to a function.
WITH RECURSIVE :parts,
ours(classid, objid) AS (SELECT classid::oid, objid FROM part UNION SELECT d.classid, d.objid
  FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
    AND d.deptype IN ('a', 'i') AND d.refclassid <> 'pg_proc'::regclass)
SELECT DISTINCT format('%s depends on %s', pg_describe_object(d.classid, d.objid, d.objsubid),
  pg_describe_object(d.refclassid, d.refobjid, 0)) AS what,
  d.refclassid = 'pg_proc'::regclass AND EXISTS (SELECT FROM pg_proc p JOIN place n ON n.oid = p.pronamespace
    WHERE p.oid = d.refobjid AND p.proname = 'token' AND n.name = 'fencegate') AS on_token
FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
WHERE NOT EXISTS (SELECT FROM ours WHERE ours.classid = d.classid AND ours.objid = d.objid)
  AND NOT :is_temporary ORDER BY 1;

-- The rows of calls, after those of the other parts:
-- - function: from is a function that the policies name
-- - caller: from is a function, given with its name, that calls to
-- - call: the operations detail on from call to
UNION ALL SELECT CASE WHEN c.function = p.oid THEN 'function' ELSE 'caller' END, p.oid, c.function, NULL, n.nspname,
  p.proname, NULL, NULL
FROM calling c JOIN pg_proc p ON p.oid = c.objid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE c.classid = 'pg_proc'::regclass
UNION ALL SELECT 'call', c.relation, c.function, c.operations, NULL, NULL, NULL, NULL FROM calls c

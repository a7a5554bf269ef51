-- The schemas with an operator = that may be used for a key's type, a type with one of the names :types, or a function
-- named :'function'. If one of them is in a session's search path, the text alone does not show its keys. A domain may
-- use the operators of its base type. At most :most. Objects with an OID below 16384 come with the server.
SELECT DISTINCT 'shadow' AS part, n.nspname AS schema FROM pg_namespace n JOIN (
  SELECT o.oprnamespace FROM pg_operator o JOIN pg_type l ON l.oid = o.oprleft JOIN pg_type r ON r.oid = o.oprright
    WHERE o.oprname = '=' AND o.oid >= 16384
    AND (l.oid < 16384 OR l.typtype = 'd' OR r.oid < 16384 OR r.typtype = 'd')
  UNION ALL SELECT t.typnamespace FROM pg_type t WHERE t.typname IN (:types) AND t.oid >= 16384
  UNION ALL SELECT p.pronamespace FROM pg_proc p WHERE p.proname = :'function' AND p.oid >= 16384) made(schema)
ON n.oid = made.schema LIMIT :most;

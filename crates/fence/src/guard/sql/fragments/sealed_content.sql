-- Columns: the hash of the functions with these :function_names, null without the function :'commented'; and the
-- comment on that function, which has the hash that was installed. Without to_regprocedure, which requires a privilege
-- on the schema.
CASE WHEN EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate')
  AND p.proname = :'commented' AND p.pronargs = 0) THEN :content END AS :content_column,
(SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate')
  AND p.proname = :'commented' AND p.pronargs = 0) AS :seal_column

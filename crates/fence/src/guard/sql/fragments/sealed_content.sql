-- Columns: the number of the functions with these :function_names, and the comment on :'commented', which has the
-- one that was installed. Not by to_regprocedure, which asks for a privilege of the schema.
:content AS :content_column, (SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc p
WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname = :'commented' AND p.pronargs = 0) AS :seal_column

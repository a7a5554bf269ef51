-- Hash of the functions with these :function_names, as they are now.
(SELECT md5(string_agg(pg_get_functiondef(p.oid) || pg_get_userbyid(p.proowner), '' ORDER BY p.proname))
FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname IN (:function_names))

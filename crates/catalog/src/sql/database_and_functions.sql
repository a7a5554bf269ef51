-- The database's name. The second statement's rows are the functions of the policies that exist.
SELECT current_database() AS database;
WITH :fenced_functions
SELECT DISTINCT n.nspname AS schema, p.proname AS name FROM fenced_function f
JOIN pg_proc p ON p.oid = f.oid JOIN pg_namespace n ON n.oid = p.pronamespace ORDER BY 1, 2;

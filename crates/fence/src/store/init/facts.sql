-- One row: the current role, and the owner of the schema, or the current role if there is none.
SELECT current_user AS me,
coalesce((SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fencegate'), current_user) AS owner;

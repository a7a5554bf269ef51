-- One row: the owner of the schema, and which of the roles that init grants it is a member of.
SELECT quote_ident(r.rolname) AS role, string_agg(DISTINCT g.rolname, ', ') AS groups FROM pg_namespace n
JOIN pg_roles r ON r.oid = n.nspowner JOIN pg_auth_members m ON m.member = r.oid JOIN pg_roles g ON g.oid = m.roleid
WHERE n.nspname = 'fencegate' AND g.rolname IN ('pg_read_all_stats', 'pg_monitor', 'pg_signal_backend') GROUP BY 1;

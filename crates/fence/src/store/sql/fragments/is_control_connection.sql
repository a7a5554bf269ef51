-- True if process s of role t is a control connection of any proxy. Checks the application name, which any client can
-- set, and the role.
(s.application_name = 'fencegate control' AND (t.rolname = current_user
OR t.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencegate')))

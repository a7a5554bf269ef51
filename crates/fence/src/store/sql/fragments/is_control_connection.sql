-- True if the process is a control connection of any proxy. Checks the application name, which any client can set,
-- and the role. :process is an alias of the process, :role one of its role.
(:process.application_name = 'fencegate control' AND (:role.rolname = current_user
OR :role.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencegate')))

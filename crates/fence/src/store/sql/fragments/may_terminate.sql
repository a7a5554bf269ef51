-- The condition under which PostgreSQL permits pg_terminate_backend. :process is an alias of the process, :role one
-- of its role.
((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR (NOT :role.rolsuper
AND (pg_has_role(current_user, 'pg_signal_backend', 'USAGE')
     OR pg_has_role(current_user, :process.usesysid, 'USAGE'))))

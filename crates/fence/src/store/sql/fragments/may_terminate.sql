-- The condition under which PostgreSQL permits pg_terminate_backend for process s of role t.
((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR (NOT t.rolsuper
AND (pg_has_role(current_user, 'pg_signal_backend', 'USAGE')
     OR pg_has_role(current_user, s.usesysid, 'USAGE'))))

-- The roles that the login role :'role_name' is a member of.
SELECT r.oid FROM pg_roles l JOIN pg_roles r ON pg_has_role(l.oid, r.oid, 'MEMBER') WHERE l.rolname = :'role_name'

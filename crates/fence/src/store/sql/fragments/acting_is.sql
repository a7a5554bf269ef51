-- The role with this :'role_name'.
SELECT r.oid FROM pg_roles r WHERE r.rolname = :'role_name'

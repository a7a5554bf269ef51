-- One row: the privileges of the connecting role for the role :'owner_role', and those of that role.
-- Since version 16, membership is not enough to act as the role.
SELECT current_user = :'owner_role' OR me.rolsuper AS is_enough,
  quote_ident(current_user) AS me, quote_ident(current_database()) AS database,
  has_database_privilege(:'owner_role', current_database(), 'CREATE') AS creates,
  EXISTS (SELECT FROM pg_roles WHERE rolname = :'owner_role' AND rolsuper) AS is_superuser,
  pg_has_role(:'owner_role', 'USAGE') AND pg_has_role(:'owner_role', CASE WHEN before_16 THEN 'MEMBER' ELSE 'SET' END)
    OR EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
       WHERE r.rolname = :'owner_role' AND m.member = me.oid AND (before_16 OR m.grantor = me.oid)) AS acts
FROM pg_roles me, (SELECT current_setting('server_version_num')::int < 160000 AS before_16) version
WHERE me.rolname = current_user;

-- True if row security does not restrict the acting role on relation c, or a permissive policy applies to the role and
-- this :'command'.
(NOT c.relrowsecurity OR NOT c.relforcerowsecurity AND pg_has_role(acting.oid, c.relowner, 'USAGE')
OR EXISTS (SELECT FROM pg_roles b WHERE b.oid = acting.oid AND (b.rolsuper OR b.rolbypassrls))
OR EXISTS (SELECT FROM pg_policy y WHERE y.polrelid = c.oid AND y.polpermissive AND y.polcmd IN ('*', :'command')
  AND EXISTS (SELECT FROM unnest(y.polroles) t WHERE t = 0 OR pg_has_role(acting.oid, t, 'USAGE'))))

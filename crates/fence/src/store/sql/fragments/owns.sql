-- True if the role who has the rights of the owner of relation c, or of its schema n.
(pg_has_role(who.oid, c.relowner, 'USAGE') OR pg_has_role(who.oid, n.nspowner, 'USAGE'))

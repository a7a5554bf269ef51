-- True if the acting role has the rights of the owner of relation c, or of its schema n.
(pg_has_role(acting.oid, c.relowner, 'USAGE') OR pg_has_role(acting.oid, n.nspowner, 'USAGE'))

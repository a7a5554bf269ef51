-- One row: whether the role :who may drop this database, or copy it as a template.
SELECT EXISTS (SELECT FROM (:who) who(oid) JOIN pg_roles r ON r.oid = who.oid, pg_database d
WHERE d.datname = current_database()
AND (pg_has_role(who.oid, d.datdba, 'USAGE') OR d.datistemplate AND r.rolcreatedb)) AS disposable;

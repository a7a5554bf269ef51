-- One row: whether the acting role (:acting) may drop this database, or copy it as a template.
SELECT EXISTS (SELECT FROM (:acting) acting(oid) JOIN pg_roles r ON r.oid = acting.oid, pg_database d
WHERE d.datname = current_database()
AND (pg_has_role(acting.oid, d.datdba, 'USAGE') OR d.datistemplate AND r.rolcreatedb)) AS disposable;

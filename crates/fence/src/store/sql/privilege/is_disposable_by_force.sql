-- One row: whether the acting role (:acting) may drop this database and terminate every process in it, except
-- these :processes and this connection's. False if there is a prepared transaction, a subscription or an active
-- replication slot, because FORCE does not end them.
SELECT EXISTS (SELECT FROM (:acting) acting(oid) JOIN pg_roles r ON r.oid = acting.oid, pg_database d
WHERE d.oid = :this_database AND pg_has_role(acting.oid, d.datdba, 'USAGE') AND NOT d.datistemplate
AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = d.datname)
AND NOT EXISTS (SELECT s.subdbid FROM pg_subscription s WHERE s.subdbid = d.oid)
AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.database = d.datname AND s.active)
AND NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) s LEFT JOIN pg_roles t ON t.oid = s.usesysid
  WHERE s.datid = d.oid AND s.pid <> pg_backend_pid() AND NOT (:is_one_of)
  AND (r.rolsuper OR NOT t.rolsuper AND (pg_has_role(acting.oid, 'pg_signal_backend', 'USAGE')
    OR pg_has_role(acting.oid, t.oid, 'USAGE'))) IS NOT TRUE)) AS disposable;

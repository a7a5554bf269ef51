-- The enabled subscriptions of this database to guarded tables, with their owners. rejected: its rows have no token,
-- and a trigger rejects such rows. The triggers' arguments are those of guard.sql: mode, on_missing, three more, the
-- exempt roles.
WITH guarded AS (SELECT tgrelid, string_to_array(encode(tgargs, 'escape'), '\000') AS arguments FROM pg_trigger
  WHERE starts_with(tgname, 'fencegate_guard_') AND tgenabled IN ('A', 'R'))
SELECT s.subname AS name, r.rolname AS owner,
  bool_or(g.arguments[1] <> 'observe' AND g.arguments[2] <> 'allow'
    AND encode(convert_to(r.rolname, getdatabaseencoding()), 'escape') <> ALL (g.arguments[6:]))
  AND NOT EXISTS (SELECT FROM pg_db_role_setting t, unnest(t.setconfig) c
    WHERE t.setdatabase IN (0, s.subdbid) AND t.setrole IN (0, s.subowner) AND c LIKE 'lease.fence=_%') AS rejected
FROM pg_subscription s JOIN pg_roles r ON r.oid = s.subowner
JOIN pg_subscription_rel l ON l.srsubid = s.oid JOIN guarded g ON g.tgrelid = l.srrelid
WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.subenabled
GROUP BY s.subname, r.rolname, s.subdbid, s.subowner ORDER BY s.subname;

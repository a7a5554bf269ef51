-- The facts about a session's process, i. Always exactly one row; missing facts are null, which is never true.
-- :pid, :backend_start, :system_identifier, :postmaster_start: as reported to the session.
-- Only this connection decides whether the server is in recovery. The session's own report, made at its start, is
-- outdated if a standby was promoted since, because a promotion ends no session. It is the same server: postmaster
-- and process are the same, each with the same start to the microsecond.
(SELECT s.pid, s.backend_start, s.pid IS NOT NULL AS running,
  extract(epoch FROM s.backend_start) = :backend_start AS same_process,
  s.datid = :this_database AS same_database,
  c.system_identifier = :system_identifier AS same_server,
  extract(epoch FROM pg_postmaster_start_time()) = :postmaster_start AS same_start,
  NOT pg_is_in_recovery() AS writable, :may_terminate AS killable
FROM pg_control_system() c LEFT JOIN pg_stat_get_activity(:pid) s ON true
LEFT JOIN pg_roles t ON t.oid = s.usesysid) i

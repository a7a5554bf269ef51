-- The role and the timeline of a server, for PostgreSQL 13 to 18.
-- wal: on a primary, the name of the WAL file that it writes. It begins with the timeline, in 8 hexadecimal digits.
-- received, replayed: on a standby, the timelines of its WAL receiver and of its last restart point. The columns are null
-- where they do not apply. The role is determined once, so that a promotion meanwhile does not mix both cases.
WITH r AS MATERIALIZED (SELECT pg_catalog.pg_is_in_recovery() AS in_recovery)
SELECT r.in_recovery, c.system_identifier,
  extract(epoch FROM pg_catalog.pg_postmaster_start_time()) AS postmaster_start,
  CASE WHEN NOT r.in_recovery THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) END AS wal,
  (SELECT w.received_tli FROM pg_catalog.pg_stat_wal_receiver w LIMIT 1) AS received,
  (SELECT k.timeline_id FROM pg_catalog.pg_control_checkpoint() k) AS replayed
FROM r, pg_catalog.pg_control_system() c

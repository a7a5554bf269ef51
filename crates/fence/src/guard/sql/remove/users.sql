-- A row for each live user: a proxy's control connection, or a session that a proxy has :admitted. Any client can have
-- the name of a control connection, but :may_admit is true only of one that may write the admissions.
SELECT format('process %s, a control connection of role %s', a.pid, a.usename) AS who FROM pg_stat_activity a
WHERE a.application_name = 'fencegate control' AND :may_admit AND :is_here :admitted;

-- The sessions with rows in the table :admissions_table.
UNION SELECT format('process %s, a session that is admitted to %s', a.pid, m.resource) FROM :admissions_table m
JOIN pg_stat_activity a ON a.pid = m.pid AND a.backend_start = m.backend_start WHERE :is_here

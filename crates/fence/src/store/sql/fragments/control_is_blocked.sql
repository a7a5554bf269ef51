-- True if the process of lock l blocks the control process.
l.pid = ANY (ARRAY(SELECT unnest(pg_blocking_pids(:control_pid))))

-- True if process s is one of these. :processes: pairs of pid and start, a comma before each.
(s.pid, extract(epoch FROM s.backend_start)) IN (VALUES (0, 0::numeric):processes)

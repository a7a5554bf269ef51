-- True if process a is one of these. :processes: pairs of pid and start, a comma before each.
(a.pid, extract(epoch FROM a.backend_start)) IN (VALUES (0, 0::numeric):processes)

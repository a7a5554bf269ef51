-- The columns of an admission, a.
a.pid, extract(epoch FROM a.backend_start) AS backend_start, a.resource, a.generation, a.token,
a.xmin AS version, a.ending

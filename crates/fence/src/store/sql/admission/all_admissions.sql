-- All admissions, at most :most. The second statement's row is their total number.
SELECT a.resource, a.generation, a.token, a.pid, extract(epoch FROM a.backend_start) AS backend_start,
  extract(epoch FROM a.admitted) AS admitted, a.proxy, :living AS alive FROM fencegate_state.admission a
  ORDER BY a.resource, a.generation, a.token, a.pid LIMIT :most;
SELECT count(*) AS admissions FROM fencegate_state.admission;

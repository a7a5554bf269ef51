-- The admissions to resource $1 below the epoch of generation $2 and token $3. waits and query: of the first
-- :described.
-- Looks up only a few processes, because each lookup reads all of them. OFFSET 0 prevents a plan that looks up all.
PREPARE holders (text, bigint, bigint) AS
SELECT :granted, a.proxy, s.waits, s.query
FROM (SELECT *, xmin, row_number() OVER () AS number FROM fencegate_state.admission a
  WHERE a.resource = $1 AND (a.generation, a.token) < ($2, $3)) a
LEFT JOIN LATERAL (SELECT coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits,
    left(s.query, 60) AS query
  FROM pg_stat_get_activity(a.pid) s WHERE a.number <= :described OFFSET 0) s ON true ORDER BY a.number;

-- Deletes admissions whose rows are unchanged since they were read. The rows are the deleted ones.
-- For each row: $1 pid, $2 backend_start, $3 resource, $4 generation, $5 token, $6 version,
-- $7 name of its family's lock.
-- The first row lock does not conflict with the guard's. Once it is held, only the guard's lock can block the
-- second. The CTEs are materialized so that, in any plan, the statement tries only the locks of these processes.
-- Another proxy that found its own process's lock taken would conclude that the guard has seen a write.
-- Looks up each row by its key, then by its ctid. A join would be planned by the last ANALYZE of the table: one such
-- plan compared every row with every other.
-- The time is exact to the microsecond. A double that counts microseconds is exact until 2255. One that counts
-- seconds with decimals is not.
-- The two keys of the process lock are those of guard.sql. A process holds this lock shared, until its transaction
-- ends, after the guard has permitted its first write to the resource or to another key of the same keyed resource.
PREPARE delete (integer[], numeric[], text[], bigint[], bigint[], bigint[], text[]) AS
WITH theirs AS MATERIALIZED (SELECT a.place, k.pid, k.family
  FROM unnest($1, $2, $3, $4, $5, $6, $7) k(pid, backend_start, resource, generation, token, version, family)
  CROSS JOIN LATERAL (SELECT a.ctid AS place FROM fencegate_state.admission a
    WHERE a.pid = k.pid
      AND a.backend_start = timestamptz 'epoch' + (k.backend_start * 1000000)::bigint * interval '1 microsecond'
      AND a.resource = k.resource AND a.generation = k.generation AND a.token = k.token
      AND a.xmin = k.version::text::xid
    FOR NO KEY UPDATE) a),
  free AS MATERIALIZED (SELECT a.place, t.pid, t.family FROM theirs t
    CROSS JOIN LATERAL (SELECT a.ctid AS place FROM fencegate_state.admission a WHERE a.ctid = t.place
      AND NOT a.ending FOR UPDATE SKIP LOCKED) a)
DELETE FROM fencegate_state.admission a WHERE a.ctid = ANY (ARRAY(
  SELECT f.place FROM free f WHERE pg_try_advisory_xact_lock(hashtext(f.family), f.pid)))
RETURNING :granted;

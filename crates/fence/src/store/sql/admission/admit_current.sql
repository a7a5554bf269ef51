-- Admits a process to those of many resources whose epoch is drained and has the token, if the process is identified.
-- The rows are the admissions. is_new: it had none. try_locks_shared.sql comes before, in the same transaction.
-- $1 resources, $2 tokens, $3 fingerprints of their policies, $4 proxy, $5 pid, $6 backend_start, $7 system
-- identifier, $8 postmaster start.
-- Waits for no other transaction. Leaves out resources whose lock or epoch is not free: admit.sql waits for them.
-- As there, an existing admission gets a new version.
PREPARE admit_current (text[], bigint[], text[], text, integer, numeric, bigint, numeric) AS
WITH wanted AS MATERIALIZED (SELECT w.* FROM unnest($1, $2, $3) w(resource, token, hash)
    WHERE :resource_key = ANY ((SELECT current_setting('fencegate.locked')::bigint[])::bigint[])),
  current AS MATERIALIZED (SELECT e.* FROM wanted w
    CROSS JOIN LATERAL (SELECT e.resource, e.generation, e.token FROM fencegate_state.epoch e
      WHERE e.resource = w.resource AND e.token = w.token AND e.drained AND e.policy_hash = w.hash
      FOR SHARE SKIP LOCKED) e),
  process AS MATERIALIZED (SELECT i.pid, i.backend_start FROM :identity WHERE :is_identified)
INSERT INTO fencegate_state.admission AS a (pid, backend_start, resource, generation, token, proxy)
SELECT p.pid, p.backend_start, e.resource, e.generation, e.token, $4 FROM current e, process p
ON CONFLICT (pid, backend_start, resource, generation, token) DO UPDATE SET admitted = clock_timestamp(),
  system_identifier = excluded.system_identifier, database = excluded.database
RETURNING :granted, a.xmax = 0 AS is_new;

-- Admits a process, if it is identified and the epoch is drained and at its token. The row is the admission. is_new:
-- it had none.
-- $1 resource, $2 token, $3 fingerprint of the policy, $4 proxy, $5 pid, $6 backend_start, $7 system identifier, $8
-- postmaster start.
-- An existing admission gets a new version, so that a delayed DELETE for the old version does not affect it. A row
-- of another database becomes a row of this one.
PREPARE admit (text, bigint, text, text, integer, numeric, bigint, numeric) AS
INSERT INTO fencegate_state.admission AS a (pid, backend_start, resource, generation, token, proxy)
SELECT i.pid, i.backend_start, e.resource, e.generation, e.token, $4
FROM fencegate_state.epoch e, :identity
WHERE e.resource = $1 AND e.token = $2 AND e.drained AND e.policy_hash = $3 AND :is_identified
ON CONFLICT (pid, backend_start, resource, generation, token) DO UPDATE SET admitted = clock_timestamp(),
  system_identifier = excluded.system_identifier, database = excluded.database
RETURNING :granted, a.xmax = 0 AS is_new;

-- Marks the epoch as drained, unless an admission below it is live or a prepared transaction holds a lock on its
-- relations. The count is 1 if the epoch is now drained.
-- $1 schemas and $2 names of the relations, $3 resource, $4 generation, $5 token, $6 fingerprint of the policy.
-- Marks nothing under different policies, which may cover other relations.
PREPARE mark (name[], name[], text, bigint, bigint, text) AS
:relations
UPDATE fencegate_state.epoch e SET drained = true, updated = clock_timestamp()
WHERE e.resource = $3 AND e.generation = $4 AND e.token = $5 AND NOT e.drained AND e.policy_hash = $6
AND NOT EXISTS (SELECT FROM fencegate_state.admission a
  WHERE a.resource = $3 AND (a.generation, a.token) < ($4, $5) AND :living)
AND NOT (:has_prepared AND EXISTS (SELECT FROM pg_locks l WHERE l.pid IS NULL AND :holds_lock));

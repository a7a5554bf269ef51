-- Raises the epoch of a resource, or creates it. The count is 1 if it did.
-- $1 resource, $2 token, $3 fingerprint of the policy, $4 when it was loaded, $5 generation, $6 lowest known token
-- or null, $7 lease or null.
-- A new epoch is above all admissions. If there are any, an operator has deleted their epoch row. The resource's
-- lock is taken first, so each Admit has either committed or will read this epoch. Reads the lease without a lock,
-- because the transaction that waits for this Publish may have renewed it.
PREPARE raise (text, bigint, text, bigint, bigint, bigint, text) AS
INSERT INTO fencegate_state.epoch AS e (resource, generation, token, policy_hash, policy_loaded)
SELECT $1, 1 + coalesce((SELECT max(a.generation) FROM fencegate_state.admission a WHERE a.resource = $1), 0),
  $2, $3, $4
WHERE ($6 IS NULL OR EXISTS (SELECT FROM fencegate_state.epoch WHERE resource = $1))
  AND ($7 IS NULL OR EXISTS (SELECT FROM fencegate_state.lease l WHERE l.election = $7 AND l.token = $2 AND :in_force))
ON CONFLICT (resource) DO UPDATE SET token = $2, drained = false, updated = clock_timestamp()
WHERE e.generation = $5 AND e.token < $2 AND e.token >= coalesce($6, 0) AND e.policy_hash = $3;

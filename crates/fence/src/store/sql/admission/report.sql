-- One row, with everything that the decision on an Admit needs: the epoch, if any, and the facts about the process.
-- $1 resource, $2 fingerprint of the policy, $3 when it was loaded, $4 pid, $5 backend_start, $6 system identifier,
-- $7 postmaster start.
PREPARE report (text, text, bigint, integer, numeric, bigint, numeric) AS
SELECT e.generation, e.token, e.drained, e.policy_hash = $2 AS same_policy,
  e.policy_loaded < $3 AS older_policy, :identity_columns
FROM :identity LEFT JOIN fencegate_state.epoch e ON e.resource = $1;

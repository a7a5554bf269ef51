-- One row if an epoch of the resource has another policy recorded than this one. :is_it: row e is that of the
-- resource, or of one of its keys.
SELECT :'resource' AS resource, NULL AS proxy
WHERE EXISTS (SELECT FROM fencegate_state.epoch e WHERE :is_it AND e.policy_hash <> :'policy') UNION ALL

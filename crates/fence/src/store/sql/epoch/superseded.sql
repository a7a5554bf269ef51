-- The resources among :known, pairs of name and fingerprint, whose rows record different policies that were not
-- loaded earlier.
SELECT e.resource FROM (VALUES :known) k(resource, hash) JOIN fencegate_state.epoch e USING (resource)
WHERE e.policy_hash IS DISTINCT FROM k.hash AND NOT :is_older;

-- Records the policy of a resource, unless the recorded one was loaded later. The count is 1 if it did. :loaded is
-- the time at which the policy was loaded, as now.sql returns it. Updates the time even if the same policy is
-- recorded: it has been loaded again.
UPDATE fencegate_state.epoch e SET policy_hash = :'policy', policy_loaded = :loaded
WHERE e.resource = :'resource' AND :is_older;

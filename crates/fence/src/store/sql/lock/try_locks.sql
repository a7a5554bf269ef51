-- Takes the free ones among the locks of resources $1. Passes their keys to later statements of the same
-- transaction.
PREPARE try_locks (text[]) AS
SELECT set_config('fencegate.locked', coalesce(array_agg(k), '{}')::text, true)
FROM (SELECT :resource_key AS k FROM unnest($1) n OFFSET 0) keys WHERE pg_try_advisory_xact_lock(k);

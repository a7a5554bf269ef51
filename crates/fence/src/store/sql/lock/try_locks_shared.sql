-- Takes the free ones among the locks of resources $1, shared. Passes their keys to later statements of the same
-- transaction. A lock for which an exclusive one waits is not free.
PREPARE try_locks_shared (text[]) AS
SELECT set_config('fencegate.locked', coalesce(array_agg(k), '{}')::text, true)
FROM (SELECT :resource_key AS k FROM unnest($1) n OFFSET 0) keys WHERE pg_try_advisory_xact_lock_shared(k);

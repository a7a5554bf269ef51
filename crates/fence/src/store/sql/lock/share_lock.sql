-- Takes the lock of resource $1, shared.
PREPARE share_lock (text) AS
SELECT pg_advisory_xact_lock_shared(:resource_key);

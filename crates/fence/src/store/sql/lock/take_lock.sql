-- Takes the lock of resource $1 exclusively.
PREPARE take_lock (text) AS
SELECT pg_advisory_xact_lock(:resource_key);

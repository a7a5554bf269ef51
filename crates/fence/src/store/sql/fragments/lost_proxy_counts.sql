-- The time for which a proxy counts after its last announcement if its control connection is lost: its sessions may
-- continue.
interval '10 minutes'

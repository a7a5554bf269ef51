-- The leases of resources, as they are installed.
SELECT resource, lease FROM fencegate.leased_resources();

-- The installed leases of resources.
SELECT resource, lease FROM fencegate.leased_resources();

-- One row: whether this version of the schema records the leases of resources.
SELECT to_regprocedure('fencegate.leased_resources()') IS NOT NULL AS there;

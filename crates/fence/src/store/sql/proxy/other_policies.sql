-- Disagreements between these policies and those in force, one per row: resources whose epochs have other policies
-- recorded, which :recorded selects, and live proxies that enforce a fence outside these :fingerprints.
:recorded
SELECT NULL AS resource, a.id AS proxy FROM fencegate_state.proxy a
WHERE :living AND NOT a.enforced <@ ARRAY[:fingerprints]::text[];

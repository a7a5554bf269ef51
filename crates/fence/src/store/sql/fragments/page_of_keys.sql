-- A common table expression: the last epoch row of a page.
WITH page AS (SELECT max(p.resource) AS last FROM (SELECT resource FROM fencegate_state.epoch
WHERE resource > :'after_name' ORDER BY resource LIMIT 10000) p)

-- The epochs that are above admissions granted by this :'proxy'.
SELECT DISTINCT e.resource, e.generation, e.token FROM fencegate_state.epoch e
JOIN fencegate_state.admission a ON a.resource = e.resource AND (a.generation, a.token) < (e.generation, e.token)
WHERE a.proxy = :'proxy' AND :is_of_this_database;

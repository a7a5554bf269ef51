-- The epoch e, with the number of server processes admitted to the resource.
e.resource, e.generation, e.token, e.drained,
(SELECT count(*) FROM fencegate_state.admission a WHERE a.resource = e.resource) AS admissions

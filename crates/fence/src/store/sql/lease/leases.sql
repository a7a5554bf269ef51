-- The existing leases of these :elections. A lease without a token was never acquired.
SELECT l.election, l.token, l.released, :in_force AS in_force, l.shown AS holder, l.role,
  extract(epoch FROM l.acquired) AS acquired,
  extract(epoch FROM l.renewed) AS renewed,
  extract(epoch FROM l.expires) AS expires
FROM fencegate_state.lease l WHERE l.token > 0
AND l.election = ANY (ARRAY[:elections]::text[]);

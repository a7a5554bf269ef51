-- The most recently acquired leases, at most :most. The second statement's row is their total number. A lease
-- without a token was never acquired.
SELECT l.election, l.token, l.released, :in_force AS in_force, l.shown AS holder, l.role,
  extract(epoch FROM l.acquired) AS acquired,
  extract(epoch FROM l.renewed) AS renewed,
  extract(epoch FROM l.expires) AS expires
FROM fencegate_state.lease l WHERE l.token > 0
ORDER BY l.acquired DESC, l.election LIMIT :most;
SELECT count(*) AS leases FROM fencegate_state.lease l WHERE l.token > 0;

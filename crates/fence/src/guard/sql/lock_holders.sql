-- One row: the holders of locks on these :relation_names and on relations that inherit from them, as text.
WITH RECURSIVE tree(oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE format('%I.%I', n.nspname, c.relname) = ANY (ARRAY[:relation_names]::text[])
  UNION SELECT h.inhrelid FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid)
SELECT string_agg(DISTINCT CASE WHEN p.gid IS NULL
  THEN format('process %s, %s, query: %s', l.pid, coalesce(a.state, a.backend_type), left(a.query, 60))
  ELSE format('prepared transaction %s', p.gid) END, '; ') AS holders
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
  AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
WHERE l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM tree)
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database());

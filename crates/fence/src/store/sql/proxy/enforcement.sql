-- For each fence with one of these :fingerprints: the numbers of proxies, of lost proxies, and of live proxies that
-- enforce the fence. The second statement's rows are the tables that do not exist, of those with :schemas and
-- :names.
SELECT f.fingerprint, count(a.id) AS proxies, count(a.id) FILTER (WHERE NOT a.lives) AS lost,
  count(a.id) FILTER (WHERE a.lives AND f.fingerprint = ANY (a.enforced)) AS enforcing
FROM unnest(ARRAY[:fingerprints]::text[]) f(fingerprint)
  LEFT JOIN (SELECT *, :living AS lives FROM fencegate_state.proxy a) a
  ON a.lives OR (a.announced > clock_timestamp() - :lost_proxy_counts AND :is_of_this_database) GROUP BY 1;
WITH named(schema, name) AS (SELECT * FROM unnest(:schemas, :names))
SELECT DISTINCT named.schema, named.name FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN :fenced_kinds
  WHERE n.nspname = named.schema AND c.relname = named.name);

-- One row: the current role, and whether it has all required privileges. others: objects of owners whose privileges
-- it lacks.
WITH :parts
SELECT current_database() AS database, current_user AS role,
(SELECT obj_description(oid, 'pg_namespace') FROM place WHERE name = 'fencegate') AS version,
(SELECT count(*) FROM part) AS parts, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees,
(SELECT c.oid::regclass FROM pg_class c JOIN place n ON n.oid = c.relnamespace
  WHERE c.relname = 'admission' AND c.relkind = 'r') AS admissions,
(SELECT string_agg(format('%s (owner of %s%s)', role, first,
    CASE WHEN n > 1 THEN format(' and %s more', n - 1) END), ', ')
  FROM (SELECT quote_ident(r.rolname), min(o.what), count(DISTINCT o.what) FROM (
    SELECT nspowner, 'schema ' || quote_ident(nspname) FROM pg_namespace
      WHERE nspname IN ('fencegate', 'fencegate_state')
    UNION ALL SELECT e.evtowner, 'the event triggers' FROM part p JOIN pg_event_trigger e ON e.oid = p.objid
      WHERE p.classid = 'pg_event_trigger'::regclass
    UNION ALL SELECT c.relowner, c.oid::regclass::text FROM part p JOIN pg_class c ON c.oid = p.relation
      WHERE p.classid = 'pg_trigger'::regclass)
  o(owner, what) JOIN pg_roles r ON r.oid = o.owner WHERE NOT pg_has_role(current_user, r.oid, 'USAGE')
  GROUP BY 1) owner(role, first, n)) AS others;

-- Everything through which a write may reach one of the tables with :schemas and :names or call a fenced function.
-- Each row has a part:
-- - relation: a fenced relation (detail is t), or the start of an edge
-- - temporary: the schema of a session's temporary relations. One of these depends on the relations and does not
-- count
-- - child: writes to from are writes to its parent; writes to the parent (detail p: partitioned) are writes to from
-- - reference: a foreign key of to refers to from; detail has the actions on delete and on update
-- - rule: a rule of from, for the event in detail, names to
-- - view: from is a view that names to; detail is trigger for INSTEAD OF triggers, stored for a materialized view,
-- otherwise the set of events that the server permits
-- - event trigger: an event trigger is enabled whose function is not fencegate's own
-- - the parts of call_rows.sql
-- An edge may begin at a relation outside this set; it then leads nowhere. Hints keep the planner, which cannot know
-- how few relations are reached, from reading whole catalogs.
-- reach follows the edges backwards. It contains a relation as a whole or by a part of its rows (by_part). A write
-- to a child affects only a part, so it does not reach the other children. reach stops at a temporary relation that
-- does not count, so each of these adds at most one step. Only a rule of a relation that counts can lead to one of
-- them; if there is such a rule, all relations count.
-- :counts, :counts_me, :counts_v, :counts_t: relation c, me, v or t counts. :events: those that the server permits on
-- view v.
-- :stored: the kind of views whose query does not matter, because only a refresh runs it.
WITH RECURSIVE :named_relations, :calls, how(by_part) AS (VALUES (false), (true)),
all_count(yes) AS (SELECT EXISTS (
  SELECT FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class AND :counts
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class t ON t.oid = d.refobjid AND NOT :counts_t WHERE r.ev_type <> '1')),
fenced(oid) AS (
  SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name AND c.relkind IN :fenced_kinds),
reach(oid, by_part) AS (
  SELECT start.oid, how.by_part FROM (SELECT oid FROM fenced UNION SELECT relation FROM calls) start, how
  UNION SELECT next.oid, next.by_part FROM reach
  JOIN pg_class me ON me.oid = reach.oid AND (:counts_me OR (SELECT yes FROM all_count))
  CROSS JOIN LATERAL (
    SELECT h.inhrelid, how.by_part FROM pg_inherits h, how WHERE h.inhparent = reach.oid AND reach.by_part
    UNION ALL SELECT h.inhparent, false FROM pg_inherits h WHERE h.inhrelid = reach.oid AND NOT reach.by_part
    UNION ALL SELECT k.confrelid, how.by_part FROM pg_constraint k, how
      WHERE k.contype = 'f' AND k.conrelid = reach.oid AND NOT reach.by_part
    UNION ALL SELECT r.ev_class, false FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
      JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> :stored
      WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = reach.oid AND NOT reach.by_part) next(oid, by_part)),
reached(oid, counts, namespace) AS (
  SELECT c.oid, :counts OR (SELECT yes FROM all_count), c.relnamespace
  FROM (SELECT DISTINCT oid FROM reach) r JOIN pg_class c ON c.oid = r.oid)
SELECT 'relation' AS part, c.oid AS "from", NULL::oid AS "to",
  (EXISTS (SELECT FROM fenced WHERE fenced.oid = c.oid))::text AS detail, n.nspname AS schema,
  c.relname AS name, CASE WHEN c.relkind = 'v' THEN 'view' WHEN c.relkind = 'm' THEN 'materialized view'
    WHEN c.relispartition THEN 'partition' WHEN c.relkind = 'p' THEN 'partitioned table'
    WHEN c.relkind = 'f' THEN 'foreign table' ELSE 'table' END AS kind, pg_get_userbyid(c.relowner) AS owner
FROM reached JOIN pg_class c ON c.oid = reached.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE reached.counts
UNION ALL SELECT 'temporary', NULL, NULL, NULL, n.nspname, NULL, NULL, NULL
FROM (SELECT DISTINCT namespace FROM reached WHERE NOT counts) r JOIN pg_namespace n ON n.oid = r.namespace
UNION ALL SELECT 'child', h.inhrelid, h.inhparent, c.relkind::text, NULL, NULL, NULL, NULL
FROM reached JOIN pg_inherits h ON h.inhrelid = reached.oid JOIN pg_class c ON c.oid = h.inhparent
WHERE reached.counts
UNION ALL SELECT 'reference', k.confrelid, k.conrelid, k.confdeltype::text || k.confupdtype::text, NULL, k.conname,
  NULL, NULL
FROM reached JOIN pg_constraint k ON k.contype = 'f' AND k.conrelid = reached.oid WHERE reached.counts
UNION ALL SELECT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, r.ev_class, pair.refobjid,
  CASE WHEN r.ev_type <> '1' THEN r.ev_type::text WHEN v.relkind = 'm' THEN 'stored'
    WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = v.oid AND t.tgtype & 64 <> 0) THEN 'trigger'
    ELSE (:events)::text END, NULL, r.rulename, NULL, NULL
FROM (SELECT DISTINCT d.objid, d.refobjid FROM reached JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass
    AND d.refclassid = 'pg_class'::regclass AND d.refobjid = reached.oid WHERE reached.counts) pair
  JOIN pg_rewrite r ON r.oid = pair.objid
  JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> :stored AND (:counts_v OR (SELECT yes FROM all_count))
WHERE NOT (r.ev_type = '1' AND r.ev_class = pair.refobjid)
UNION ALL SELECT 'event trigger', NULL, NULL, NULL, NULL, e.evtname, NULL, NULL
FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid
WHERE e.evtenabled <> 'D' AND p.pronamespace IS DISTINCT FROM to_regnamespace('fencegate')::oid
:call_rows LIMIT :limit;

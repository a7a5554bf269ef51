-- Common table expressions: kept, the function that stays, with its schema; part, a row per object. object is null
-- for an object that is dropped with another one. Order: functions precede tables, because an argument may have a
-- table's type; functions of defaults and triggers follow the tables.
-- :keep_token: the function token stays. :event_triggers, :own_functions, :guard_functions, :notice_functions and
-- :own_relations are their names.
place(oid, name) AS (SELECT oid, nspname FROM pg_namespace WHERE nspname IN ('fencegate', 'fencegate_state')),
kept(oid, schema) AS (SELECT p.oid, p.pronamespace FROM pg_proc p JOIN place n ON n.oid = p.pronamespace
  WHERE :keep_token AND n.name = 'fencegate' AND p.proname = 'token'),
part(rank, classid, objid, relation, object) AS (
  SELECT 1, 'pg_event_trigger'::regclass, e.oid, NULL::oid, 'event trigger ' || quote_ident(e.evtname)
  FROM pg_event_trigger e WHERE e.evtname IN (:event_triggers)
  UNION ALL SELECT 2, 'pg_trigger'::regclass, t.oid, t.tgrelid,
    CASE WHEN t.tgparentid = 0 THEN format('trigger %I on %s', t.tgname, t.tgrelid::regclass) END
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE :is_guards AND NOT t.tgisinternal
  UNION ALL SELECT CASE WHEN EXISTS (SELECT FROM pg_depend d
      WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid) THEN 5 ELSE 3 END,
    'pg_proc'::regclass, p.oid, NULL, 'function ' || p.oid::regprocedure
  FROM pg_proc p JOIN place n ON n.oid = p.pronamespace WHERE p.prokind = 'f' AND p.oid NOT IN (SELECT oid FROM kept)
    AND p.proname IN (:own_functions, :guard_functions, :notice_functions)
  UNION ALL SELECT 4, 'pg_class'::regclass, c.oid, c.oid,
    CASE c.relkind WHEN 'S' THEN 'sequence ' ELSE 'table ' END || c.oid::regclass
  FROM pg_class c JOIN place n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'S') AND c.relname IN (:own_relations)
  UNION ALL SELECT 4, 'pg_type'::regclass, t.oid, NULL, 'type ' || t.oid::regtype
  FROM pg_type t JOIN place n ON n.oid = t.typnamespace WHERE t.typtype = 'e' AND t.typname = 'epoch'
  UNION ALL SELECT 6, 'pg_namespace'::regclass, n.oid, NULL, 'schema ' || quote_ident(n.name) FROM place n
  WHERE n.oid NOT IN (SELECT schema FROM kept))

-- One row for each privilege: its object, and whether it is permitted.
-- $1 schemas and $2 names of the fenced tables, $3 the role, or $4 a login role that may become any of its roles; of
-- each privilege: $5 schema or null, $6 name, $7 operation.
-- :inserts, :updates, :deletes: row security lets them through. :locks, :may_write: the acting role may write relation
-- c; :writes: the role p may.
-- step follows the server: from the relation that a privilege names, which the role itself must be allowed to write,
-- to the relations that this write reaches.
-- - Relations below a rule or a view are written as its owner.
-- - Relations below a view with security_invoker, or written by an INSTEAD OF trigger of a view, are written as the
-- role. If that trigger's function is SECURITY DEFINER, the view's owner counts, not the function's: any role may
-- use such a function in its own view.
-- - The server checks no privileges for children, parents and changes by foreign keys.
-- A call starts at each fenced table, and at each relation that may lead to one (start). It acts as the role or as
-- the owner of a function that the role may call (actor). A relation that does not exist yet needs the privilege to
-- create it in its schema, or to create the schema.
PREPARE permits (name[], name[], name, name, name[], name[], text[]) AS
WITH RECURSIVE :named,
acting(oid) AS (SELECT r.oid FROM pg_roles r WHERE r.rolname = $3 UNION ALL SELECT r.oid
  FROM pg_roles l JOIN pg_roles r ON pg_has_role(l.oid, r.oid, 'MEMBER') WHERE l.rolname = $4),
privilege(schema, name, operation, number) AS (SELECT * FROM unnest($5, $6, $7) WITH ORDINALITY),
fenced(oid) AS (SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name),
start(number, operation, relation) AS (
  SELECT d.number, d.operation, c.oid FROM privilege d JOIN pg_class c ON c.relname = d.name
    JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE d.operation <> 'call' AND (d.schema IS NULL OR n.nspname = d.schema)
  UNION ALL SELECT d.number, d.operation, c.oid FROM privilege d CROSS JOIN pg_class c
  WHERE d.operation = 'call' AND (c.oid IN (SELECT oid FROM fenced) OR c.relhasrules OR c.relhassubclass)
    AND c.relnamespace NOT IN (:built_in)),
actor(number, oid) AS (
  SELECT d.number, acting.oid FROM privilege d CROSS JOIN acting
  UNION SELECT d.number, f.proowner FROM privilege d CROSS JOIN acting
    JOIN pg_proc f ON f.prosecdef AND f.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
    JOIN pg_namespace n ON n.oid = f.pronamespace AND n.oid NOT IN (:built_in)
  WHERE d.operation = 'call' AND has_function_privilege(acting.oid, f.oid, 'EXECUTE') AND :usable),
step(number, relation, principal, acting) AS (
  SELECT d.number, c.oid, acting.oid, acting.oid FROM start d JOIN actor acting ON acting.number = d.number
    JOIN pg_class c ON c.oid = d.relation AND c.relkind IN ('r', 'p', 'v', 'f', 'm')
    JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE :usable AND CASE d.operation
      WHEN 'call' THEN :may_write AND (:inserts OR :updates OR :deletes)
      WHEN 'insert' THEN has_any_column_privilege(acting.oid, c.oid, 'INSERT') AND :inserts
      WHEN 'update' THEN has_any_column_privilege(acting.oid, c.oid, 'UPDATE') AND :updates
      WHEN 'delete' THEN has_table_privilege(acting.oid, c.oid, 'DELETE') AND :deletes
      WHEN 'truncate' THEN has_table_privilege(acting.oid, c.oid, 'TRUNCATE')
      WHEN 'truncate cascade' THEN has_table_privilege(acting.oid, c.oid, 'TRUNCATE')
      WHEN 'lock' THEN :locks
      WHEN 'ddl' THEN :owns OR has_table_privilege(acting.oid, c.oid, 'TRIGGER')
        OR has_any_column_privilege(acting.oid, c.oid, 'REFERENCES')
      ELSE :owns END
  UNION SELECT step.number, next.relation, next.principal, step.acting FROM step CROSS JOIN LATERAL (
    SELECT h.inhrelid, step.principal FROM pg_inherits h WHERE h.inhparent = step.relation
    UNION ALL SELECT h.inhparent, step.principal FROM pg_inherits h WHERE h.inhrelid = step.relation
    UNION ALL SELECT t.oid, t.relowner FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid
      WHERE k.contype = 'f' AND k.confrelid = step.relation
      AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
    UNION ALL SELECT c.oid, p.oid FROM pg_class v JOIN pg_rewrite r ON r.ev_class = v.oid
      JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        AND d.refclassid = 'pg_class'::regclass
      JOIN pg_class c ON c.oid = d.refobjid AND c.oid <> v.oid AND c.relkind IN ('r', 'p', 'v', 'f', 'm')
      CROSS JOIN LATERAL (SELECT CASE WHEN r.ev_type = '1' AND EXISTS (SELECT FROM unnest(v.reloptions) o
          WHERE o ~* '^security_invoker=(t|y|on|1)') THEN step.acting ELSE v.relowner END
        UNION ALL SELECT CASE WHEN f.prosecdef THEN v.relowner ELSE step.acting END
          FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid WHERE g.tgrelid = v.oid AND g.tgtype & 64 <> 0) p(oid)
      WHERE v.oid = step.relation AND :writes) next(relation, principal))
SELECT CASE d.operation WHEN 'call' THEN 'function ' ELSE 'table ' END || d.name AS what, CASE d.operation
  WHEN 'call' THEN EXISTS (SELECT FROM acting, pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
    WHERE n.nspname = d.schema AND f.proname = d.name AND has_function_privilege(acting.oid, f.oid, 'EXECUTE')
    AND :usable AND (f.prosecdef OR NOT EXISTS (SELECT FROM fenced) OR EXISTS (SELECT FROM step s
      WHERE s.number = d.number AND s.relation IN (SELECT oid FROM fenced))))
  ELSE EXISTS (SELECT FROM step s WHERE s.number = d.number
      AND (s.relation IN (SELECT oid FROM fenced) OR d.operation LIKE '%cascade' AND NOT EXISTS (
        SELECT FROM named WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema))))
    OR EXISTS (SELECT FROM acting, named JOIN pg_namespace n ON n.nspname = named.schema
      WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema)
      AND has_schema_privilege(acting.oid, n.oid, 'CREATE') AND NOT EXISTS (SELECT FROM pg_class c
        WHERE c.relnamespace = n.oid AND c.relname = named.name))
    OR EXISTS (SELECT FROM acting, named WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema)
      AND has_database_privilege(acting.oid, current_database(), 'CREATE')
      AND NOT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = named.schema))
  END AS permitted FROM privilege d ORDER BY d.number;

-- The triggers of the guard, one per row. On the relations :fenced, which the policies fence, these are all triggers
-- with its names. Elsewhere, only those that a role related to fencegate or to these relations may have created.
-- pg_get_triggerdef locks the table.
WITH fenced AS (SELECT oid, relowner FROM pg_class WHERE oid = ANY (:'fenced'::oid[]))
SELECT format('%I.%I', n.nspname, c.relname) AS relation, quote_ident(t.tgname) AS name,
  t.tgenabled AS enabled, t.tgparentid <> 0 AS is_copy,
  CASE WHEN t.tgrelid IN (SELECT oid FROM fenced) THEN pg_get_triggerdef(t.oid) END AS definition,
  pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter,
  t.tgrelid IN (SELECT oid FROM fenced) OR c.relowner IN (SELECT relowner FROM fenced)
    OR pg_has_role(c.relowner, n.nspowner, 'USAGE') OR pg_has_role(c.relowner, own.nspowner, 'USAGE')
    OR NOT me.rolsuper AND pg_has_role(me.oid, c.relowner, 'USAGE') AS belongs
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles me ON me.rolname = current_user JOIN pg_namespace own ON own.nspname = 'fencegate'
WHERE :is_guards OR starts_with(t.tgname, 'fencegate_guard_') AND t.tgrelid IN (SELECT oid FROM fenced);

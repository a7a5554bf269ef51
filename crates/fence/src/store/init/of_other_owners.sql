-- The objects of fencegate that do not belong to :'owner_role', as ALTER names them: those with the names in
-- :'relation_list' and :'function_list', except those in :'kept_relations' and :'kept_functions'. Array literals.
SELECT 'TABLE ' || c.oid::regclass AS object FROM pg_class c JOIN pg_roles r ON r.rolname = :'owner_role'
WHERE c.relnamespace = 'fencegate_state'::regnamespace AND c.relkind IN ('r', 'S') AND c.relowner <> r.oid
  AND c.relname = ANY (:'relation_list'::name[]) AND c.oid <> ALL (:'kept_relations'::oid[])
UNION ALL SELECT 'TYPE ' || t.oid::regtype FROM pg_type t JOIN pg_roles r ON r.rolname = :'owner_role'
WHERE t.oid = to_regtype('fencegate.epoch') AND t.typowner <> r.oid
UNION ALL SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p JOIN pg_roles r ON r.rolname = :'owner_role'
WHERE p.pronamespace = 'fencegate'::regnamespace AND p.proowner <> r.oid
  AND p.proname = ANY (:'function_list'::name[]) AND p.oid <> ALL (:'kept_functions'::oid[]);

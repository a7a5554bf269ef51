-- One row: the schemas before this init, and a stranger, an untrusted role that owns one of them or an object in
-- them.
-- Any role with CREATE on the database could have created the schema, with triggers that run as the role that writes
-- to its tables. Trusted are superusers, the connecting role, the role :named_role, and former control roles, which
-- are members of pg_signal_backend. The owner as such is not trusted.
SELECT (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fencegate') AS owner,
to_regnamespace('fencegate_state') IS NOT NULL AS has_state,
obj_description(to_regnamespace('fencegate'), 'pg_namespace') AS version,
ARRAY(SELECT oid FROM pg_class WHERE relnamespace IN :init_schemas) AS relations,
ARRAY(SELECT oid FROM pg_proc WHERE pronamespace IN :init_schemas) AS functions,
(SELECT min(r.rolname) FROM pg_roles r
WHERE NOT r.rolsuper AND r.rolname NOT IN (current_user, :named_role)
  AND NOT pg_has_role(r.oid, 'pg_signal_backend', 'USAGE') AND r.oid IN (
    SELECT nspowner FROM pg_namespace WHERE oid IN :init_schemas
    UNION SELECT relowner FROM pg_class WHERE relnamespace IN :init_schemas
    UNION SELECT proowner FROM pg_proc WHERE pronamespace IN :init_schemas
    UNION SELECT typowner FROM pg_type WHERE typnamespace IN :init_schemas)) AS stranger;

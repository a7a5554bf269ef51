-- The table fenced_function: the existing functions with :exact_schemas and :exact_names, and those whose names begin
-- with :prefixes in :prefix_schemas. Four arrays.
named_function(schema, name) AS (SELECT * FROM unnest(:exact_schemas, :exact_names)),
named_prefix(schema, name) AS (SELECT * FROM unnest(:prefix_schemas, :prefixes)),
fenced_function(oid) AS (
SELECT p.oid FROM named_function f JOIN pg_namespace n ON n.nspname = f.schema
  JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = f.name
UNION SELECT p.oid FROM named_prefix f JOIN pg_namespace n ON n.nspname = f.schema
  JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname >= f.name
    AND starts_with(p.proname::text, f.name::text))

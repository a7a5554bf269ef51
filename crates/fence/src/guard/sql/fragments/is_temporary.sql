-- True if the dependent object of row d of pg_depend is temporary: CASCADE may drop it, and its session can continue.
EXISTS (SELECT FROM pg_namespace z WHERE starts_with(z.nspname, 'pg_temp_')
AND z.oid <> pg_my_temp_schema() AND z.oid = :dependent_schema)

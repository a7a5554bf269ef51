-- One row: the tables among :relation_names, as a list. LOCK TABLE does not lock foreign tables.
SELECT string_agg(name, ', ' ORDER BY oid) AS tables
FROM (SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')) t
WHERE name = ANY (ARRAY[:relation_names]::text[]);

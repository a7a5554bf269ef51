-- One row: the tables among :relation_names, as a list. The server locks no foreign table by the statement that this
-- is for.
SELECT string_agg(name, ', ' ORDER BY oid) AS tables
FROM (SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')) t
WHERE name = ANY (ARRAY[:relation_names]::text[]);

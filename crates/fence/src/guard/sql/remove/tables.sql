-- The tables to be locked.
WITH :parts
SELECT DISTINCT format('%I.%I', n.nspname, c.relname) AS name FROM part p
JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace;

-- The existing triggers of the guard, each with its relation. Omits copies, which are dropped with their original.
SELECT format('%I.%I', n.nspname, c.relname) AS relation, quote_ident(t.tgname) AS name
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE :is_guards AND t.tgparentid = 0 ORDER BY 1, 2;

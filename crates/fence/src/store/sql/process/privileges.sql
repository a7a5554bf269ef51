-- The last statement's row has the grants and privileges that this role lacks. Can be executed without any of them.
SET search_path = pg_catalog;
SELECT :lacking;

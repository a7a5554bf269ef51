-- The objects, and the statements that remove them, in order. A schema that stays loses its version, because no proxy
-- can use it.
WITH :parts
SELECT object, statement FROM (
SELECT rank, object, 'DROP ' || object || :cascade AS statement FROM part WHERE object IS NOT NULL
UNION ALL SELECT 7, 'version of schema fencegate', 'COMMENT ON SCHEMA fencegate IS NULL' FROM kept
WHERE obj_description(schema, 'pg_namespace') IS NOT NULL) r ORDER BY rank, object;

-- A common table expression of the names in the first two parameters, schemas and names.
named(schema, name) AS (SELECT * FROM unnest($1, $2))

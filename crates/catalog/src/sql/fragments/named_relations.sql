-- A common table expression: the relations with :schemas and :names, two arrays.
named(schema, name) AS (SELECT * FROM unnest(:schemas, :names))

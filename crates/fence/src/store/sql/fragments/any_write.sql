-- True if the role :writer may write relation c in any way.
(has_table_privilege(:writer, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
OR has_any_column_privilege(:writer, c.oid, 'INSERT, UPDATE'))

-- The kinds of relations that can be fenced, as in pg_class.relkind: tables, partitioned and foreign ones, and
-- views.
('r', 'p', 'v', 'f')

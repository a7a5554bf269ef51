-- The oid of this database.
(SELECT oid FROM pg_database WHERE datname = current_database())

-- The time by the database's clock, in microseconds since 1970.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

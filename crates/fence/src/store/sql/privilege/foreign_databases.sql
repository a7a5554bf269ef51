-- The databases among :databases that exist and that the acting role (:acting) may not drop, rename or move.
SELECT d.datname FROM pg_database d WHERE d.datname IN (:databases) AND NOT EXISTS (
SELECT FROM (:acting) acting(oid) WHERE pg_has_role(acting.oid, d.datdba, 'USAGE'));

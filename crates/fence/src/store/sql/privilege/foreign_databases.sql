-- The databases among :databases that exist and that the role :who may not drop, rename or move.
SELECT d.datname FROM pg_database d WHERE d.datname IN (:databases) AND NOT EXISTS (
SELECT FROM (:who) who(oid) WHERE pg_has_role(who.oid, d.datdba, 'USAGE'));

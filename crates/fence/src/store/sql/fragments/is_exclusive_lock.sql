-- True if l is a lock on an :awaited table of fencegate, in a mode that conflicts with those of control connections,
-- which read, write and lock rows. Readers such as pg_dump hold none of these modes.
l.locktype = 'relation' AND l.database = :this_database
AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
AND l.relation IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('fencegate_state')) AND :awaited

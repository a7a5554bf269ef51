-- True if l is the advisory lock with this :key in this database.
l.locktype = 'advisory' AND l.database = :this_database AND :is_lock

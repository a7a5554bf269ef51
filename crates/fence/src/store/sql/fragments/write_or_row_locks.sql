-- The modes of write_locks.sql, and that of SELECT … FOR UPDATE, whose holder may block the next leader.
'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock',
'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'

-- Lock modes that only writes need.
'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'

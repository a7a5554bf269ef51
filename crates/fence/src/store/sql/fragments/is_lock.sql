-- True if l is the advisory lock with this :key.
l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = :key

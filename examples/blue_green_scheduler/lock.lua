-- Changes the lock in one step. KEYS: the lock, the number of its holders so far. ARGV: acquire, extend or release; the
-- holder's UUID; the time to live in ms.
local lock, count = KEYS[1], KEYS[2]
local step, holder, ttl = ARGV[1], ARGV[2], ARGV[3]

if step == 'acquire' then
    if redis.call('SET', lock, holder, 'NX', 'PX', ttl) then
        -- The fencing token.
        return redis.call('INCR', count)
    end
    return false
end
-- An expired holder must not change the lock of its successor.
if redis.call('GET', lock) ~= holder then
    return 0
end
if step == 'extend' then
    return redis.call('PEXPIRE', lock, ttl)
end
return redis.call('DEL', lock)

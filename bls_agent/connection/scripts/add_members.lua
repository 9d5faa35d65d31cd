-- KEYS[1]  a set
-- ARGV[1]  TTL of the set in seconds
-- ARGV[…]  members, a thousand at most, because Lua limits the arguments of a call
--
-- Adds members to a set, and returns how many of them are new. One step, because a set
-- whose writer dies before the EXPIRE would stay for ever.
local added = redis.call('SADD', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return added

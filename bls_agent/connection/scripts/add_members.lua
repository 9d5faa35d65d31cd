-- KEYS[1]  a set
-- ARGV[1]  seconds that it lives from now on
-- ARGV[…]  members, a thousand at most: Lua cannot hand over many more at once
--
-- Adds members to a set, and says how many of them are new. One step, because a set
-- whose writer dies before the EXPIRE would stay for ever.
local added = redis.call('SADD', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return added

-- KEYS[1]  a set, or a Bloom filter
-- ARGV[1]  TTL in milliseconds, counted from the first member
-- ARGV[2]  the command that adds a member: SADD or BF.ADD
-- ARGV[3]  the member
--
-- Adds a member, and returns 1 if it is new, else 0. Later members do not extend the TTL.
-- One step, because a set whose writer dies before the PEXPIRE would stay for ever.
local added = redis.call(ARGV[2], KEYS[1], ARGV[3])
if redis.call('PTTL', KEYS[1]) == -1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return added

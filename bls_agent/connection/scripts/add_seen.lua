-- KEYS[1]  a set, or a Bloom filter
-- ARGV[1]  milliseconds that it lives from its first member on
-- ARGV[2]  the command that adds to it: SADD or BF.ADD
-- ARGV[3]  the member
--
-- Adds a member, and says 1 if it is new, else 0. One step, because a set whose writer
-- dies before the PEXPIRE would stay for ever; later members do not make it live longer.
local added = redis.call(ARGV[2], KEYS[1], ARGV[3])
if redis.call('PTTL', KEYS[1]) == -1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return added

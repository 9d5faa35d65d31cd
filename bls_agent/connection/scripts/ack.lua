-- KEYS[1]  …:inflight:<instance>, a list: what one process has taken and not ended
-- KEYS[2]  …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[3]  …:seen, a sorted set: ids of commands that ended, by the server's time
-- KEYS[4]  …:owner, a string: our token as long as the in-flight list is ours
-- ARGV[1]  our token; nothing if the command was reclaimed from us
-- ARGV[2]  the bytes of the command that came to its end
-- ARGV[3]  its id, or nothing if it has none that counts
-- ARGV[4]  milliseconds for which an id counts as seen, 0 for never
-- ARGV[5]  ids that are kept at most
--
-- Takes a command that ended out of its in-flight list and remembers its id. Says 1, or
-- 0 if the command was reclaimed: the other delivery keeps all that is its own; or -1,
-- and does nothing, if the list is not ours any more. One step, because a command must
-- neither be forgotten before its id is known nor the other way round. Whatever may be
-- refused because a key has another type comes before the first write; LREM is the first
-- one, because it is allowed when memory is out, and the rest is then allowed behind it.
local counted = redis.call('HLEN', KEYS[2]) > 0
local ids = redis.call('ZCARD', KEYS[3])
local removed = 0
if ARGV[1] ~= '' then
  if redis.call('GET', KEYS[4]) ~= ARGV[1] then
    return -1
  end
  removed = redis.call('LREM', KEYS[1], 1, ARGV[2])
end
if removed == 1 and counted then
  local digest = redis.sha1hex(ARGV[2])
  redis.call('HDEL', KEYS[2], digest, KEYS[1] .. '/' .. digest)
end
if ARGV[3] ~= '' and ARGV[4] ~= '0' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - ARGV[4]))
  redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[3])
  if ids >= tonumber(ARGV[5]) then
    redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - ARGV[5])
  end
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
end
return removed

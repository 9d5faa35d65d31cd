-- KEYS[1]  …:inflight:<instance>, a list: what one process has taken and not ended
-- KEYS[2]  …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[3]  …:seen, a sorted set: ids of commands that ended, by the server's time
-- KEYS[4]  …:owner, a string: our token as long as the in-flight list is ours
-- ARGV[1]  milliseconds for which an id counts as seen, 0 for never
-- ARGV[2]  our token
-- ARGV[…]  in pairs: the bytes of a command in the in-flight list, its id or nothing
--
-- Gives for each command which delivery this is (0 where no count stands, which is then
-- the first), and whether its id has been seen, or
-- -1 if the list is not ours any more; the
-- delivery is noted for the list, as it is when commands are taken by a script. One
-- step, so that what is noted is what was said.
if redis.call('GET', KEYS[4]) ~= ARGV[2] then
  return -1
end
local counted = redis.call('HLEN', KEYS[2]) > 0
local since
if ARGV[1] ~= '0' then
  local now = redis.call('TIME')
  since = now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1]
end
local admitted = {}
for i = 3, #ARGV, 2 do
  local delivery, seen = 1, 0
  if since and ARGV[i + 1] ~= '' then
    local score = redis.call('ZSCORE', KEYS[3], ARGV[i + 1])
    if score and tonumber(score) > since then
      seen = 1
    end
  end
  if counted then
    local digest = redis.sha1hex(ARGV[i])
    local noted = redis.call('HGET', KEYS[2], digest)
    if noted then
      delivery = #noted < 10 and string.match(noted, '^%d+$') and tonumber(noted) or 0
      redis.call('HSET', KEYS[2], KEYS[1] .. '/' .. digest, math.max(delivery, 1))
    end
  end
  admitted[#admitted + 1] = {delivery, seen}
end
return admitted

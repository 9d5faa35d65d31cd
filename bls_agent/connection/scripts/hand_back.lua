-- KEYS[1]  {project}_控制, a list: the commands of one project
-- KEYS[2]  …:inflight:<instance>, a list: what this process has taken and not ended
-- KEYS[3]  …:owner, a string: our token as long as the list is ours
-- KEYS[4]  …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[5]  …:dead, a list: commands that were handed out too often
-- KEYS[6]  …:inflight, a hash: list → how many of its oldest commands may have been started
-- ARGV[1]  our token
-- ARGV[2]  how often a command is handed out at most
-- ARGV[3]  how many dead letters are kept
-- ARGV[4]  seconds for which deliveries are remembered
-- ARGV[5]  1 if this process is at its end, else 0
-- ARGV[6]  how many commands are to stay
-- ARGV[…]  those, byte for byte; then those that were started and did not end
--
-- Puts back to the head of the control list, in their order, all commands but those that
-- are to stay. Those that were started have been delivered; the others have not. At the
-- end of the process an empty list is struck off, and the lease is given back. Says
-- whether the list was ours, which commands are dead letters now, and which of those
-- that are to stay do not stand there. Run again it changes nothing. One step, because a command must never stand in no list, or in both.
-- Whatever may be refused because a key has another type comes before the first write;
-- LREM is the first one, because it is allowed when memory is out, and the rest is then
-- allowed behind it.
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return {0, {}, {}}
end
redis.call('LLEN', KEYS[1])
redis.call('HLEN', KEYS[4])
redis.call('LLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
local function count_of(told)
  return told and #told < 10 and string.match(told, '^%d+$') and tonumber(told) or 1
end
local stay, started, dead, missing = {}, {}, {}, {}
for i = 7, #ARGV do
  local some = i <= 6 + ARGV[6] and stay or started
  some[ARGV[i]] = (some[ARGV[i]] or 0) + 1
end
local payloads = redis.call('LRANGE', KEYS[2], 0, -1)
for i = #payloads, 1, -1 do
  local payload = payloads[i]
  if (stay[payload] or 0) > 0 then
    stay[payload] = stay[payload] - 1
  else
    redis.call('LREM', KEYS[2], -1, payload)
    local digest = redis.sha1hex(payload)
    local here = KEYS[2] .. '/' .. digest
    local delivery = count_of(redis.call('HGET', KEYS[4], here))
    redis.call('HDEL', KEYS[4], here)
    if (started[payload] or 0) > 0 then
      started[payload] = started[payload] - 1
      delivery = delivery + 1
      local before = count_of(redis.call('HGET', KEYS[4], digest))
      redis.call('HSET', KEYS[4], digest, math.max(before, delivery))
    end
    if delivery > tonumber(ARGV[2]) then
      redis.call('RPUSH', KEYS[5], payload)
      redis.call('LTRIM', KEYS[5], -ARGV[3], -1)
      redis.call('HDEL', KEYS[4], digest)
      dead[#dead + 1] = payload
    else
      redis.call('LPUSH', KEYS[1], payload)
    end
  end
end
redis.call('EXPIRE', KEYS[4], ARGV[4])
if ARGV[5] == '1' then
  if redis.call('LLEN', KEYS[2]) == 0 then
    redis.call('HDEL', KEYS[6], KEYS[2])
  end
  redis.call('DEL', KEYS[3])
end
for payload, count in pairs(stay) do
  for _ = 1, count do
    missing[#missing + 1] = payload
  end
end
return {1, dead, missing}

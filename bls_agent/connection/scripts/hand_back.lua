-- KEYS[1]  control: {project}_控制, a list: the commands of one project
-- KEYS[2]  inflight: …:inflight:<instance>, a list: commands that this process works on
-- KEYS[3]  owner: …:owner, a string: our token as long as the list is ours
-- KEYS[4]  lists: …:inflight, a hash: list → how many of its oldest commands may have been started
-- KEYS[5]  deliveries: …:deliveries, a hash: delivery counts of commands that were put back
-- KEYS[6]  dead_letters: …:dead, a list: commands that were handed out too often
-- ARGV     token: our token
--          most: how often a command is handed out at most
--          kept: how many dead letters are kept
--          seconds: how long delivery counts are remembered
--          is_final: 1 if this process ends, else 0
--          stays: how many commands stay in our list
--          rest: the bytes of the commands that stay; then of those started but not ended
--
-- Puts all commands of our list back to the head of the control list, in their order, except
-- those that stay. Only started commands count as delivered. If the process ends, the lease is
-- ended, and an empty list is removed from `lists`. If commands are left in the list, `lists`
-- records that all of them may have been started. Returns whether the list was ours, which
-- commands became dead letters, and which commands should stay but are missing. A repeated run
-- changes nothing.
--
-- One step, because a command must always be in exactly one list. Every command that a key of
-- another type would make fail comes before the first write. The first write is LREM, because
-- a server that is out of memory allows LREM, and then also allows the writes after it.
if redis.call('GET', owner) ~= token then
  return {0, {}, {}}
end
redis.call('LLEN', control)
redis.call('HLEN', deliveries)
redis.call('LLEN', dead_letters)
redis.call('HLEN', lists)
local function count_of(text)
  return text and #text < 10 and string.match(text, '^%d+$') and tonumber(text) or 1
end
local stay, started, dead, missing = {}, {}, {}, {}
for i = rest, #ARGV do
  local some = i < rest + stays and stay or started
  some[ARGV[i]] = (some[ARGV[i]] or 0) + 1
end
local payloads = redis.call('LRANGE', inflight, 0, -1)
for i = #payloads, 1, -1 do
  local payload = payloads[i]
  if (stay[payload] or 0) > 0 then
    stay[payload] = stay[payload] - 1
  else
    redis.call('LREM', inflight, -1, payload)
    local digest = redis.sha1hex(payload)
    local here = inflight .. '/' .. digest
    local delivery = count_of(redis.call('HGET', deliveries, here))
    redis.call('HDEL', deliveries, here)
    if (started[payload] or 0) > 0 then
      started[payload] = started[payload] - 1
      delivery = delivery + 1
      local before = count_of(redis.call('HGET', deliveries, digest))
      redis.call('HSET', deliveries, digest, math.max(before, delivery))
    end
    if delivery > tonumber(most) then
      redis.call('RPUSH', dead_letters, payload)
      redis.call('LTRIM', dead_letters, -kept, -1)
      redis.call('HDEL', deliveries, digest)
      dead[#dead + 1] = payload
    else
      redis.call('LPUSH', control, payload)
    end
  end
end
redis.call('EXPIRE', deliveries, seconds)
if is_final == '1' then
  local left = redis.call('LLEN', inflight)
  if left == 0 then
    redis.call('HDEL', lists, inflight)
  else
    redis.call('HSET', lists, inflight, left)
  end
  redis.call('DEL', owner)
end
for payload, count in pairs(stay) do
  for _ = 1, count do
    missing[#missing + 1] = payload
  end
end
return {1, dead, missing}

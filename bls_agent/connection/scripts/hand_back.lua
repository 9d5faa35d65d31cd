-- KEYS[1]  control: {project}_控制, a list: the commands of one project
-- KEYS[2]  inflight: …:inflight:<instance>, a list: what this process has taken and not ended
-- KEYS[3]  owner: …:owner, a string: our token as long as the list is ours
-- KEYS[4]  lists: …:inflight, a hash: list → how many of its oldest commands may have been started
-- KEYS[5]  deliveries: …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[6]  dead_letters: …:dead, a list: commands that were handed out too often
-- ARGV     token: ours
--          most: how often a command is handed out at most
--          kept: how many dead letters are kept
--          seconds: for which deliveries are remembered
--          is_final: 1 if this process is at its end, else 0
--          stays: how many commands are to stay
--          rest: those, byte for byte; then those that were started and did not end
--
-- Puts back to the head of the control list, in their order, all commands but those that
-- are to stay. Those that were started have been delivered; the others have not. At the
-- end of the process an empty list is struck off, of another one all may have been started,
-- and the lease is given back. Returns whether the list was ours, which commands are dead
-- letters now, and which of those that are to stay do not stand there. Run again it changes
-- nothing. One step, because a command must never stand in no list, or in both.
-- Whatever may be refused because a key has another type comes before the first write;
-- LREM is the first one, because it is allowed when memory is out, and the rest is then
-- allowed behind it.
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

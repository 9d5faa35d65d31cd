-- KEYS[1]  control: {project}_控制, a list: the commands of one project
-- KEYS[2]  inflight: …:inflight:<instance>, a list: commands that another process worked on
-- KEYS[3]  owner: …:owner, a string: the lease of that process (see lease.lua)
-- KEYS[4]  lists: …:inflight, a hash: list → how many of its oldest commands may have been started
-- KEYS[5]  deliveries: …:deliveries, a hash: delivery counts of commands that were put back
-- KEYS[6]  dead_letters: …:dead, a list: commands that were handed out too often
-- ARGV     milliseconds: length of a lease whose token does not contain its length
--          limit: how many commands to move at most
--          most: how often a command is handed out at most
--          kept: how many dead letters are kept
--          seconds: how long delivery counts are remembered
--
-- If the process is dead, its commands go back to the head of the control list, in their
-- order. A process starts commands in order. Before the oldest command is acknowledged, the
-- process starts no more commands than the number in `lists`. Without a number all may have
-- been started. The delivery count of commands that may have been started grows by one, and a
-- command that was handed out too often becomes a dead letter. The other commands keep their
-- counts. An empty list is then removed from `lists`. Returns whether the process is alive, how
-- many commands were moved, and which commands became dead letters.
--
-- One step, because the owner may come back at any moment, and because a command must always
-- be in a list. Every command that a key of another type would make fail comes before the
-- first write. The first write is RPOP, because a server that is out of memory allows RPOP,
-- and then also allows the writes after it.
if look_at_lease(owner, nil, milliseconds) == 'held' then
  return {1, 0, {}}
end
redis.call('LLEN', control)
redis.call('HLEN', deliveries)
redis.call('LLEN', dead_letters)
local startable = redis.call('HGET', lists, inflight)
startable = startable and #startable < 10 and string.match(startable, '^%d+$')
startable = startable and tonumber(startable) or math.huge
local place = redis.call('LLEN', inflight)
local function count_of(text)
  return text and #text < 10 and string.match(text, '^%d+$') and tonumber(text) or 1
end
local moved, dead, noted = 0, {}, {}
while moved < tonumber(limit) do
  local payload = redis.call('RPOP', inflight)
  if not payload then
    break
  end
  moved = moved + 1
  local digest = redis.sha1hex(payload)
  noted[payload] = noted[payload]
    or redis.call('HGET', deliveries, inflight .. '/' .. digest) or '1'
  local delivery = count_of(noted[payload]) + 1
  if place > startable then
    redis.call('LPUSH', control, payload)
  elseif delivery > tonumber(most) then
    redis.call('RPUSH', dead_letters, payload)
    redis.call('HDEL', deliveries, digest)
    dead[#dead + 1] = payload
  else
    redis.call('LPUSH', control, payload)
    local before = count_of(redis.call('HGET', deliveries, digest))
    redis.call('HSET', deliveries, digest, math.max(before, delivery))
  end
  place = place - 1
end
for _, payload in ipairs(redis.call('LRANGE', inflight, 0, -1)) do
  noted[payload] = nil  -- the next run needs the count for this copy
end
for payload in pairs(noted) do
  redis.call('HDEL', deliveries, inflight .. '/' .. redis.sha1hex(payload))
end
if place == 0 then
  redis.call('HDEL', lists, inflight)
end
if moved > 0 then
  redis.call('LTRIM', dead_letters, -kept, -1)
  redis.call('EXPIRE', deliveries, seconds)
end
return {0, moved, dead}

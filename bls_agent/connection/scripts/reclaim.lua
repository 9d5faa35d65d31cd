-- KEYS[1]  {project}_控制, a list: the commands of one project
-- KEYS[2]  …:inflight:<instance>, a list: what another process had taken and not ended
-- KEYS[3]  …:owner, a string: the lease of that process (see lease.lua)
-- KEYS[4]  …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[5]  …:dead, a list: commands that were handed out too often
-- KEYS[6]  …:inflight, a hash: list → how many of its oldest commands may have been started
-- ARGV[1]  how many commands to move at most
-- ARGV[2]  how often a command is handed out at most
-- ARGV[3]  how many dead letters are kept
-- ARGV[4]  seconds for which deliveries are remembered
-- ARGV[5]  milliseconds of a lease whose token does not tell them
--
-- If the process is dead, its commands go back to the head of the control list, in their
-- order. A process takes and starts commands in order and starts no more than it has named
-- in KEYS[6] before the oldest is acknowledged: each of these has one more delivery noted,
-- and goes to the dead letters if it was handed out too often; the others keep the count
-- that they had. Where no number is named, all may have been started. A list that is empty
-- then is struck off. Returns whether the process is alive, how many commands were moved,
-- and which are dead. One step, because the owner may come back at any moment, and because
-- a command must never stand in no list. Whatever may be refused because a key has another
-- type comes before the first write; RPOP is the first one, because it is allowed when
-- memory is out, and the rest is then allowed behind it.
if look_at_lease(KEYS[3], nil, ARGV[5]) == 'held' then
  return {1, 0, {}}
end
redis.call('LLEN', KEYS[1])
redis.call('HLEN', KEYS[4])
redis.call('LLEN', KEYS[5])
local startable = redis.call('HGET', KEYS[6], KEYS[2])
startable = startable and #startable < 10 and string.match(startable, '^%d+$')
startable = startable and tonumber(startable) or math.huge
local place = redis.call('LLEN', KEYS[2])
local function count_of(told)
  return told and #told < 10 and string.match(told, '^%d+$') and tonumber(told) or 1
end
local moved, dead, noted = 0, {}, {}
while moved < tonumber(ARGV[1]) do
  local payload = redis.call('RPOP', KEYS[2])
  if not payload then
    break
  end
  moved = moved + 1
  local digest = redis.sha1hex(payload)
  local here = KEYS[2] .. '/' .. digest
  noted[here] = noted[here] or redis.call('HGET', KEYS[4], here) or '1'
  local delivery = count_of(noted[here]) + 1
  if place > startable then
    redis.call('LPUSH', KEYS[1], payload)
  elseif delivery > tonumber(ARGV[2]) then
    redis.call('RPUSH', KEYS[5], payload)
    redis.call('HDEL', KEYS[4], digest)
    dead[#dead + 1] = payload
  else
    redis.call('LPUSH', KEYS[1], payload)
    local before = count_of(redis.call('HGET', KEYS[4], digest))
    redis.call('HSET', KEYS[4], digest, math.max(before, delivery))
  end
  place = place - 1
end
if redis.call('LLEN', KEYS[2]) == 0 then
  for here in pairs(noted) do
    redis.call('HDEL', KEYS[4], here)
  end
  redis.call('HDEL', KEYS[6], KEYS[2])
end
if moved > 0 then
  redis.call('LTRIM', KEYS[5], -ARGV[3], -1)
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
return {0, moved, dead}

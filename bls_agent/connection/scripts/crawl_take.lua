-- KEYS[1]  …:queue:requests, a sorted set: member to priority
-- KEYS[2]  …:queue:requests:data, a hash: member to body
-- KEYS[3]  …:queue:processing, a sorted set: member to the second in which its lease ends
-- KEYS[4]  …:queue:processing:data, a hash: member to body
-- KEYS[5]  …:leases, a hash: member to token and priority
-- KEYS[6]  …:delayed, a hash: member to priority, of requests that wait for a retry
-- KEYS[7]  …:counters, a hash: counts of requests taken, finished and so on
-- KEYS[8]  …:wake, a list: one element while requests wait
-- KEYS[9]  …:queue:failed, and KEYS[10] …:filter:fingerprint; not used here
-- ARGV[1]  how many requests to take at most
-- ARGV[2]  token of the lease; nothing to take requests without a lease
-- ARGV[3]  milliseconds of the lease
-- ARGV[4]  the key of a member's retries without the member
-- ARGV[5]  how many bytes of bodies to return at most, but always one body
--
-- Puts requests back whose lease or delay has ended. Then takes the first requests. Returns
-- the milliseconds until the next lease or delay ends (-1 if there is none), and then member,
-- body, priority and number of failures of each request.
--
-- One step, because a worker may die at any time, and a request with its body must always
-- be in one of the two sorted sets. A server that is out of memory refuses the first write.
-- If the server executes the first write, it does not refuse the later writes.
local wanted, token = tonumber(ARGV[1]), ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000

local function second(value)
  return string.format('%.6f', value)
end

local function count(name, by)
  if by > 0 then
    redis.pcall('HINCRBY', KEYS[7], name, by)
  end
end

local function failures_of(member)
  local text = redis.pcall('GET', ARGV[4] .. member)
  local is_count = type(text) == 'string' and #text < 10 and string.match(text, '^%d+$')
  return is_count and tonumber(text) or 0
end

redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('LLEN', KEYS[8])

local expired = 0
for _, member in ipairs(
  redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', second(now), 'LIMIT', 0, 100)
) do
  local held = redis.call('HGET', KEYS[5], member)
  local priority = held and string.match(held, ' (.*)$')
    or redis.call('HGET', KEYS[6], member)
  local body = redis.call('HGET', KEYS[4], member)
  priority = string.format('%.17g', (tonumber(priority or '') or 0) + 1)
  redis.call('ZADD', KEYS[1], priority, member)
  if body then
    redis.call('HSET', KEYS[2], member, body)
  end
  if held then
    count_failure(ARGV[4] .. member)
    expired = expired + 1
  end
  redis.call('ZREM', KEYS[3], member)
  redis.call('HDEL', KEYS[4], member)
  redis.call('HDEL', KEYS[5], member)
  redis.call('HDEL', KEYS[6], member)
end
count('expired', expired)

local reply = {-1}
local found, size = {}, 0
if wanted > 0 then
  found = redis.call('ZRANGE', KEYS[1], 0, wanted - 1, 'WITHSCORES')
end
for at = 1, #found, 2 do
  local member, priority = found[at], found[at + 1]
  local body = redis.call('HGET', KEYS[2], member)
  size = size + #(body or '')
  if at > 1 and size > tonumber(ARGV[5]) then
    break
  end
  if token ~= '' then
    redis.call('ZADD', KEYS[3], second(now + ARGV[3] / 1000), member)
    redis.call('HSET', KEYS[5], member, token .. ' ' .. priority)
    if body then
      redis.call('HSET', KEYS[4], member, body)
    end
  end
  redis.call('ZREM', KEYS[1], member)
  redis.call('HDEL', KEYS[2], member)
  reply[#reply + 1] = member
  reply[#reply + 1] = body
  reply[#reply + 1] = priority
  reply[#reply + 1] = failures_of(member)
end
count('taken', (#reply - 1) / 4)

if redis.call('ZCARD', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[8])
elseif redis.call('LLEN', KEYS[8]) == 0 then
  redis.call('RPUSH', KEYS[8], '1')
end
local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
if first[2] then
  reply[1] = math.max(0, math.ceil((first[2] - now) * 1000))
end
return reply

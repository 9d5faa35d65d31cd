-- KEYS[1]  …:queue:requests, a sorted set: member to priority
-- KEYS[2]  …:queue:requests:data, a hash: member to body
-- KEYS[3]  …:queue:processing, a sorted set: member to the second in which its lease ends
-- KEYS[4]  …:queue:processing:data, a hash: member to body
-- KEYS[5]  …:leases, a hash: member to token and priority
-- KEYS[6]  …:delayed, a hash: member to priority, of requests that wait for a retry
-- KEYS[7]  …:counters, a hash: counts of requests taken, finished and so on
-- KEYS[8]  …:wake, a list: one element while requests wait
-- KEYS[9]  …:queue:failed, a list of JSON entries
-- KEYS[10] …:filter:fingerprint; not used here
-- ARGV[1]  how many entries the failed list keeps
-- ARGV[2]  the key of a member's retries without the member
-- ARGV[…]  action, member, token and one value, for each request:
--          ack: the request is finished; value: 1 if it has failed before
--          renew: the lease is renewed; value: its milliseconds
--          back: the request returns to the queue; value: priority and body if the request
--          was taken without a lease, else nothing
--          retry: the request returns to the queue later; value: after how many milliseconds
--          fail: the request goes into the failed list; value: its entry
--          recall: like back, for every request that was taken with the token
--
-- Ends or renews leases. Returns 1 for each request that its token still holds, else 0. The
-- actions of a request that was taken without a lease, and has no token, are executed, too.
--
-- Each action is one step, because another worker may have taken the request meanwhile.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local waiting = false
local kept = tonumber(ARGV[1])

redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('LLEN', KEYS[8])
redis.call('LLEN', KEYS[9])

local function later(milliseconds)
  return string.format('%.6f', now + milliseconds / 1000)
end

local function count(name)
  redis.pcall('HINCRBY', KEYS[7], name, 1)
end

local function release(member)
  redis.call('ZREM', KEYS[3], member)
  redis.call('HDEL', KEYS[4], member)
  redis.call('HDEL', KEYS[5], member)
end

local function back(member, priority)
  local body = redis.call('HGET', KEYS[4], member)
  redis.call('ZADD', KEYS[1], priority, member)
  if body then
    redis.call('HSET', KEYS[2], member, body)
  end
  release(member)
  waiting = true
end

local act = {}
function act.ack(member, priority, failed)
  release(member)
  if failed == '1' then
    redis.call('DEL', ARGV[2] .. member)
  end
  count('acknowledged')
end
function act.renew(member, priority, milliseconds)
  redis.call('ZADD', KEYS[3], later(milliseconds), member)
end
function act.back(member, priority, value)
  if value == '' then
    back(member, priority)
    return
  end
  local score, body = string.match(value, '^(%S+) (.*)$')
  redis.call('ZADD', KEYS[1], score, member)
  redis.call('HSET', KEYS[2], member, body)
  waiting = true
end
function act.retry(member, priority, milliseconds)
  redis.call('HSET', KEYS[6], member, priority)
  redis.call('ZADD', KEYS[3], later(milliseconds), member)
  redis.call('HDEL', KEYS[5], member)
  count_failure(ARGV[2] .. member)
  count('retried')
end
function act.fail(member, priority, entry)
  redis.call('RPUSH', KEYS[9], entry)
  redis.call('LTRIM', KEYS[9], -kept, -1)
  release(member)
  redis.call('DEL', ARGV[2] .. member)
end

local done = {}
for at = 3, #ARGV, 4 do
  local what, member, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if what == 'recall' then
    local held = redis.call('HGETALL', KEYS[5])
    for place = 1, #held, 2 do
      local owner, priority = string.match(held[place + 1], '^(%S+) (.*)$')
      if owner == token then
        back(held[place], priority)
      end
    end
    done[#done + 1] = 1
  else
    local held = token ~= '' and redis.call('HGET', KEYS[5], member)
    local owner, priority = string.match(held or '', '^(%S*) ?(.*)$')
    if owner == token then
      act[what](member, priority, ARGV[at + 3])
      done[#done + 1] = 1
    else
      done[#done + 1] = 0
    end
  end
end
if waiting and redis.call('LLEN', KEYS[8]) == 0 then
  redis.call('RPUSH', KEYS[8], '1')
end
return done

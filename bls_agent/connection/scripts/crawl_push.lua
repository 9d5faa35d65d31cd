-- KEYS[1]  …:queue:requests, a sorted set: member to priority
-- KEYS[2]  …:queue:requests:data, a hash: member to body
-- KEYS[3]  …:queue:processing, and the next three: see crawl_settle.lua; not used here
-- KEYS[7]  …:counters, a hash: the last serial number, and counts of requests
-- KEYS[8]  …:wake, a list: one element while requests wait
-- KEYS[9]  …:queue:failed, a list
-- KEYS[10] …:filter:fingerprint, a set
-- ARGV[…]  priority, body, fingerprint and entry of the failed list, for each request;
--          the fingerprint is empty if the request may be queued twice, the entry is empty
--          for a new request
--
-- Queues requests. Returns for each request 1 if it was queued. Returns 0 if its fingerprint
-- is in the set already, or if its entry is no longer in the failed list.
--
-- One step, for three reasons: a request whose fingerprint is in the set, but that is not
-- queued, would never be fetched; a request without a body cannot be fetched; and an entry
-- must not be queued twice.
local added, moved, serial = {}, 0, nil
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
serial = tonumber(redis.call('HGET', KEYS[7], 'serial') or '')
redis.call('LLEN', KEYS[8])
redis.call('SCARD', KEYS[10])
redis.call('LLEN', KEYS[9])
if not serial then  -- the time is above all earlier numbers, even if the hash was lost
  local now = redis.call('TIME')
  serial = now[1] * 1000000 + now[2]
end
local count = 0
for at = 1, #ARGV, 4 do
  local fingerprint, entry = ARGV[at + 2], ARGV[at + 3]
  local new = 1
  if entry ~= '' then
    new = redis.call('LREM', KEYS[9], 1, entry)
  elseif fingerprint ~= '' then
    new = redis.call('SADD', KEYS[10], fingerprint)
  end
  if new == 1 then
    serial = serial + 1
    local member = string.format('%016.0f', serial)
    redis.call('ZADD', KEYS[1], ARGV[at], member)
    redis.call('HSET', KEYS[2], member, ARGV[at + 1])
    count = count + 1
  end
  added[#added + 1] = new
end
if count > 0 then
  redis.call('HSET', KEYS[7], 'serial', string.format('%.0f', serial))
  redis.pcall('HINCRBY', KEYS[7], 'pushed', count)
  if redis.call('LLEN', KEYS[8]) == 0 then
    redis.call('RPUSH', KEYS[8], '1')
  end
end
return added

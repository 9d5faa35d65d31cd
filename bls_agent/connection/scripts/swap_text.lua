-- KEYS[1]  a string
-- ARGV[1]  the value that the caller has read
-- ARGV[2]  the new value
--
-- Writes the new value with the TTL of the old value, and returns 1, if the key still holds
-- the value that the caller has read. Otherwise returns the current value, or nothing if
-- there is none. One step, because a change by another process between GET and SET would be
-- lost, and because a server before 6.0 has no KEEPTTL.
local found = redis.call('GET', KEYS[1])
if found ~= ARGV[1] then
  return found
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', string.format('%.0f', math.max(left, 1)))
end
return 1

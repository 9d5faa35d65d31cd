-- KEYS[1]  a string: what is said of one thing
-- ARGV[1]  what stood there when we looked
-- ARGV[2]  what is to stand there instead
--
-- Writes a text if nobody else has written since we looked, and says 1; it lives as long
-- as the one before would have lived. Otherwise gives what stands there now, or nothing.
-- One step, because between a look and a SET somebody else's change would get lost, and
-- because a server before 6.0 has no KEEPTTL.
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

-- KEYS[1]  a string
-- ARGV[1]  TTL in seconds; 0 to delete the key
-- ARGV[2]  the new value
--
-- Writes or deletes a value, and returns 1 if the key existed before, else 0. One step,
-- because SET and DEL would remove a key of another type, which belongs to another
-- program. STRLEN fails for such a key before anything is written.
redis.call('STRLEN', KEYS[1])
local stood = redis.call('EXISTS', KEYS[1])
if ARGV[1] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[1])
end
return stood

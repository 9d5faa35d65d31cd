-- KEYS[1]  a string: what is said of one thing
-- ARGV[1]  seconds that it lives from now on; 0 to delete it
-- ARGV[2]  what is to stand there
--
-- Writes or deletes a text, and says 1 if one stood there before, else 0. One step,
-- because SET and DEL would do away with a key of another type, which is somebody
-- else's: STRLEN refuses that before anything is written.
redis.call('STRLEN', KEYS[1])
local stood = redis.call('EXISTS', KEYS[1])
if ARGV[1] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[1])
end
return stood

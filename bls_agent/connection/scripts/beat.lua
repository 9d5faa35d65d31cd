-- KEYS[1]  a string that only one process writes
-- KEYS[2]  …:owner, a string: the lease on KEYS[1] (see lease.lua), with the number of the
--          owner's last write and the SHA-1 of the value: "<token> <number> <digest>"
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until key and lease end if nobody writes again
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  the number of this write; each write of ours has a higher number
-- ARGV[5]  the value
-- ARGV[6]  1 if a key without an owner may be taken, else 0
-- ARGV[7]  SHA-1 of our former value, or nothing; if no process owns the key, this value
--          may be overwritten, but no other value
-- ARGV[8]  1 if readers may still see the current value, so that it may get a new TTL, else 0
--
-- Writes a value as the owner of the key, and restarts the TTL of key and lease. One step,
-- because another process may take the lease between GET and a write.
-- Returns {what, milliseconds, whose}; values of what:
--   written     the value is written; milliseconds is 1 if it has replaced a value that
--               another program wrote
--   refreshed   the server is out of memory, and the former value got a new TTL
--   held        another process owns the key, for so many milliseconds
--   stands      no process owns the key, but it holds a value of another program, for so
--               many milliseconds (-1: for ever)
--   lapsed      our lease has ended, and this write must not take the key
--   late        a write of ours with a higher number was executed before
--   wrong_type  one of the keys has another type
-- A write has a number, because a late request of a lost connection must not replace a new
-- value by an old value, and must not write a key after the lease was given back.
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'string' and kind ~= 'none' then
    return {'wrong_type', 0, key}
  end
end

local found = redis.call('GET', KEYS[1])
local standing, left, whose, words, cut = look_at_lease(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
local number, digest = string.match(words, '^(%S*) ?(%S*)')
local strange = found and redis.sha1hex(found) ~= digest
if standing == 'held' then
  if cut and found and not strange then
    redis.call('PEXPIRE', KEYS[1], left)
  end
  return {'held', left, whose}
elseif standing == 'free' then
  if ARGV[6] ~= '1' then
    return {'lapsed', 0, ''}
  elseif strange and redis.sha1hex(found) ~= ARGV[7] then
    return {'stands', redis.call('PTTL', KEYS[1]), ''}
  end
  strange = false
elseif standing == 'ended' or (tonumber(number) or 0) > tonumber(ARGV[4]) then
  return {'late', 0, ''}
end

local written = redis.pcall('SET', KEYS[1], ARGV[5], 'PX', ARGV[2])
if type(written) == 'table' and written.err then
  local full = string.find(written.err, 'OOM', 1, true)
  if not (full and standing == 'ours' and found and ARGV[8] == '1') then
    return written
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return {'refreshed', 0, ''}
end
local lease = table.concat({ARGV[1], ARGV[4], redis.sha1hex(ARGV[5])}, ' ')
redis.call('SET', KEYS[2], lease, 'PX', ARGV[2])
return {'written', strange and 1 or 0, ''}

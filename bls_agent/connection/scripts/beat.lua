-- KEYS[1]  a string of some contract that only one process writes
-- KEYS[2]  …:owner, a string: its lease (see lease.lua), "<token> <number> <digest>": the
--          number of the owner's last write and the SHA-1 of the value
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until key and lease end if nobody writes again
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  the number of this write; ours grow
-- ARGV[5]  the value
-- ARGV[6]  1 if the key may be taken where it has no owner, else 0
-- ARGV[7]  SHA-1 of the value that may then stand there: our former one; or nothing
-- ARGV[8]  1 if the value that stands there is true enough to be kept alive, else 0
--
-- Writes a value as the owner of its key, and begins the TTL of key and lease anew. One
-- step, because between a look and a write the lease may end and somebody else's begin.
-- Says {what, milliseconds, whose}:
--   written     it stands there; milliseconds is 1 if a stranger's value had stood there
--   refreshed   memory is out: the former value lives on
--   held        somebody else owns it, for so many milliseconds
--   stands      nobody owns it, but a stranger's value stands there, for so many
--               (-1: for ever)
--   lapsed      our lease has ended and the key must not be taken in this write
--   late        a later write of ours has come before
--   wrong_type  one of the keys holds another type
-- The number is what keeps a request that a lost connection delivers late from putting
-- an old value over a new one, or a key in place that its owner has given back.
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

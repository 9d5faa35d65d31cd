-- KEYS[1]  a string of some contract that only one process writes
-- KEYS[2]  …:owner, a string: "<token> <number> <digest> <milliseconds>" of its owner:
--          the number of its last write, the SHA-1 of the value and for how long it
--          counts; or "<token> ended"
-- ARGV[1]  our token
-- ARGV[2]  the number of this write; ours grow
-- ARGV[3]  the value
-- ARGV[4]  milliseconds until key and lease end if nobody writes again
-- ARGV[5]  1 if the key may be taken where it has no owner, else 0
-- ARGV[6]  SHA-1 of the value that may then stand there: our former one; or nothing
-- ARGV[7]  a token whose owner is surely dead, or nothing
-- ARGV[8]  1 if the value that stands there is true enough to be kept alive, else 0
--
-- Writes a value as the owner of its key, and begins the TTL of key and lease anew. One
-- step, because between a look and a write the lease may end and somebody else's begin.
-- Says {what, milliseconds, whose}:
--   written     it stands there; milliseconds is 1 if a stranger's value had stood there
--   refreshed   memory is out: the former value lives on
--   held        somebody else owns it, for so many milliseconds (-1: for ever)
--   stands      nobody owns it, but a stranger's value stands there, for so many
--   lapsed      our lease has ended and the key must not be taken in this write
--   late        a later write of ours has come before
--   wrong_type  one of the keys holds another type
-- The number is what keeps a request that a lost connection delivers late from putting
-- an old value over a new one, or a key in place that its owner has given back.
-- A lease that ends later than it says (the server's clock was set back, or somebody has
-- written here) is cut to that length, and with it the value of its owner: one that lives
-- writes long before.
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'string' and kind ~= 'none' then
    return {'wrong_type', 0, key}
  end
end

local found = redis.call('GET', KEYS[1])
local whose, number, digest
local lease = redis.call('GET', KEYS[2])
if lease then
  whose, number, digest = string.match(lease, '^(%S+) ?(%S*) ?(%S*)')
  whose = whose or ''
  local told = string.match(lease, ' (%d+)$')
  local length = math.min(tonumber(told or ARGV[4]), 2 ^ 40)
  local left = redis.call('PTTL', KEYS[2])
  if whose ~= ARGV[1] and number ~= 'ended' and (left < 0 or left > length) then
    redis.call('PEXPIRE', KEYS[2], length)
    if found and redis.sha1hex(found) == digest then
      redis.call('PEXPIRE', KEYS[1], length)
    end
  end
  if whose == ARGV[1] then
    if number == 'ended' or (tonumber(number) or 0) > tonumber(ARGV[2]) then
      return {'late', 0, ''}
    end
  elseif number == 'ended' then
    whose, digest = nil, nil
  elseif whose == ARGV[7] and whose ~= '' then
    whose = nil
  else
    return {'held', redis.call('PTTL', KEYS[2]), whose}
  end
end

local strange = found and redis.sha1hex(found) ~= digest
if not whose then
  if ARGV[5] ~= '1' then
    return {'lapsed', 0, ''}
  end
  if strange and redis.sha1hex(found) ~= ARGV[6] then
    return {'stands', redis.call('PTTL', KEYS[1]), ''}
  end
  strange = false
end

local written = redis.pcall('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
if type(written) == 'table' and written.err then
  if not (whose and found and ARGV[8] == '1' and string.find(written.err, 'OOM', 1, true)) then
    return written
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return {'refreshed', 0, ''}
end
lease = table.concat({ARGV[1], ARGV[2], redis.sha1hex(ARGV[3]), ARGV[4]}, ' ')
redis.call('SET', KEYS[2], lease, 'PX', ARGV[4])
return {'written', strange and 1 or 0, ''}

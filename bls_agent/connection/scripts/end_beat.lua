-- KEYS[1]  a string of some contract that only one process writes
-- KEYS[2]  …:owner, a string: "<token> <number> <digest> …" of its owner (see beat.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds for which "<token> ended" stays, 0 if nothing has to
--
-- Removes a key that is ours, and its lease; leaves everything else alone, also what a
-- stranger has written over our value. Says how many keys of the contract were removed.
-- What stays behind keeps a request of ours that may still be on its
-- way from taking the key again; for everybody else the key is free. One step, because
-- between a look and a DEL somebody else may have got it.
local lease = redis.call('TYPE', KEYS[2])['ok'] == 'string' and redis.call('GET', KEYS[2])
local whose, digest
if lease then
  whose, digest = string.match(lease, '^(%S+) ?%S* ?(%S*)')
end
local removed = 0
if whose == ARGV[1] then
  local found = redis.call('TYPE', KEYS[1])['ok'] == 'string' and redis.call('GET', KEYS[1])
  if found and redis.sha1hex(found) == digest then
    removed = redis.call('DEL', KEYS[1])
  end
  redis.call('DEL', KEYS[2])
end
if ARGV[2] ~= '0' and (not lease or whose == ARGV[1]) then
  redis.pcall('SET', KEYS[2], ARGV[1] .. ' ended', 'PX', ARGV[2])
end
return removed

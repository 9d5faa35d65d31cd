-- KEYS[1]  …:owner, a string: the lease on the key beside which it lies (see lease.lua)
-- KEYS[2]  that key, if its value is the owner's (see beat.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds for which "<token> ended" stays, 0 if nothing has to
--
-- Ends a lease that is ours and removes our value; leaves everything else alone, also
-- what a stranger has written over our value. Says how many values were removed. What
-- stays behind keeps a request of ours that may still be on its way from taking the lease
-- again; for everybody else it is free. One step, because between a look and a DEL
-- somebody else may have got it.
local lease = redis.pcall('GET', KEYS[1])  -- a table where it holds another type
local ours = type(lease) == 'string' and string.match(lease, '^%S*') == ARGV[1]
local removed = 0
if ours then
  local found = KEYS[2] and redis.pcall('GET', KEYS[2])
  if type(found) == 'string' and redis.sha1hex(found) == string.match(lease, '%S*$') then
    removed = redis.call('DEL', KEYS[2])
  end
  redis.call('DEL', KEYS[1])
end
if ARGV[2] ~= '0' and (ours or not lease) then
  redis.pcall('SET', KEYS[1], ARGV[1] .. ' ended', 'PX', ARGV[2])
end
return removed

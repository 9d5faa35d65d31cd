-- KEYS[1]  …:owner, a string: the lease on another key (see lease.lua)
-- KEYS[2]  that other key, if only the owner writes its value (see beat.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds for which "<token> ended" stays in KEYS[1], 0 to delete KEYS[1]
--
-- Ends the lease if it is ours, and removes the value if we wrote it. A value of another
-- process stays. Returns how many values were removed. While the key holds "<token> ended",
-- a late request of ours cannot take the lease again, but other processes can.
-- One step, because another process may take the lease between GET and DEL.
local lease = redis.pcall('GET', KEYS[1])  -- a table if the key has another type
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

-- KEYS[1]  …:owner, a string: the lease on another key (see lease.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until our lease ends if nobody renews it
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  1 to take a free lease, 0 only to renew our lease
--
-- Takes or renews a lease. Returns {what, milliseconds, whose}. Values of what:
--   ours    we own the lease
--   held    another process owns the lease, for so many milliseconds
--   lapsed  the lease is free, but must not be taken
--   ended   we have given the lease back
-- One step, because another process may take the lease between GET and a write.
local standing, left, whose = look_at_lease(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if standing == 'held' or standing == 'ended' then
  return {standing, left, whose}
elseif standing == 'free' and ARGV[4] ~= '1' then
  return {'lapsed', 0, ''}
end
hold_lease(KEYS[1], standing, ARGV[1], ARGV[2])
return {'ours', 0, ''}

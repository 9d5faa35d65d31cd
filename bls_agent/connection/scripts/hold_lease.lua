-- KEYS[1]  …:owner, a string: the lease on the key beside which it lies (see lease.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until our lease ends if nobody renews it
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  1 if it may be taken where nobody has it, else 0
--
-- Takes or renews a lease. Says {what, milliseconds, whose}: ours; held, with what is
-- left of the other's lease; lapsed if it was not to be taken; or ended. One step,
-- because between a look and a write our lease may end and somebody else's begin.
local standing, left, whose = look_at_lease(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if standing == 'held' or standing == 'ended' then
  return {standing, left, whose}
elseif standing == 'free' and ARGV[4] ~= '1' then
  return {'lapsed', 0, ''}
end
hold_lease(KEYS[1], standing, ARGV[1], ARGV[2])
return {'ours', 0, ''}

-- KEYS[1]  …:owner, a string: the token of whoever owns the key beside which it lies
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until the lease ends if nobody renews it
--
-- Gives a lease that is still ours its full time again, and says so with 1; leaves
-- another owner's alone and says 0. But one that ends later than its token says
-- ("<hex>.<milliseconds>…", ours where it says nothing) is cut to that length: the
-- server's clock was set back, or somebody has written here; a living owner renews it
-- long before. One step, because between a look and a PEXPIRE
-- our lease may end and somebody else's begin: we would then prolong that one.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if holder then
  local told = string.match(holder, '^%x+%.(%d+)')
  local left, length = redis.call('PTTL', KEYS[1]), math.min(tonumber(told or ARGV[2]), 2 ^ 40)
  if left < 0 or left > length then
    redis.call('PEXPIRE', KEYS[1], length)
  end
end
return 0

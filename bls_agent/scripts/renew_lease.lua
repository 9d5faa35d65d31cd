-- KEYS[1]  …:owner, a string: the token of whoever owns the key beside which it lies
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until the lease ends if nobody renews it
--
-- Gives a lease that is still ours its full time again, and says so with 1; leaves
-- another owner's alone and says 0. One step, because between a look and a PEXPIRE
-- our lease may end and somebody else's begin: we would then prolong that one.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0

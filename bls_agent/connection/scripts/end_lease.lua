-- KEYS[1]  …:owner, a string: the token of whoever owns the key beside which it lies
-- ARGV[1]  our token
--
-- Ends a lease that is ours, and says so with 1; leaves another owner's alone and
-- says 0. One step, because between a look and a DEL somebody else may have got it.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0

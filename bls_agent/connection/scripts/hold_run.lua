-- KEYS[1]  run:{run_id}:events, a stream: the events of one run
-- KEYS[2]  bls_agent:{…}:books, a hash: what counts them (see add_events.lua)
-- KEYS[3]  …:owner, a string: the lease of the run's writer (see lease.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until our lease ends if nobody renews it
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  seconds that the run lives from now on at least; one without a TTL gets none
--
-- Takes or keeps the right to end a run, and lets the run live on, however long nothing
-- is written. Says {what, milliseconds, whose}: ours; held, with what is left of the
-- other's lease; or ended: the books know what we wrote and no owner, so that we or
-- somebody else has ended the run, and a request of ours that comes late must not open it
-- again. One step, because between a look and a write the lease may end and somebody
-- else's begin. What the books say stays when the lease ends: so a reader knows that a
-- writer was there and did not end the run.
redis.call('XLEN', KEYS[1])
local books = redis.call('HMGET', KEYS[2], 'owner', 'batch:' .. ARGV[1])
local standing, left, whose = look_at_lease(KEYS[3], ARGV[1], ARGV[2], ARGV[3])
if standing == 'free' and not books[1] and books[2] then
  standing = 'ended'
end
if standing == 'held' or standing == 'ended' then
  return {standing, left, whose}
end
hold_lease(KEYS[3], standing, ARGV[1], ARGV[2])
if books[1] ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'owner', ARGV[1])
end
local lives = redis.call('PTTL', KEYS[1])
if lives ~= -1 and lives < ARGV[4] * 1000 then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
if redis.call('PTTL', KEYS[2]) < ARGV[4] * 1000 then
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
return {'ours', 0, ''}

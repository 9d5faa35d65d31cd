-- KEYS[1]  run:{run_id}:events, a stream: the events of one run
-- KEYS[2]  bls_agent:{…}:books, a hash: the metadata of the run (see add_events.lua), called
--          the books below
-- KEYS[3]  …:owner, a string: the lease of the run's writer (see lease.lua)
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until our lease ends if nobody renews it
-- ARGV[3]  a token whose owner is surely dead, or nothing
-- ARGV[4]  shortest TTL of the run in seconds; a run without a TTL gets none
--
-- Takes or keeps the right to end a run, and extends the TTL of the run, even if nothing is
-- written. Returns {what, milliseconds, whose}. Values of what:
--   ours   we own the run
--   held   another process owns the run, for so many milliseconds
--   ended  the books contain our last batch but no owner, because the run was ended; a late
--          request of ours must not open the run again
-- One step, because another process may take the lease between GET and a write. The owner in
-- the books stays after the lease has ended, so that a reader can find out that a writer has
-- not ended the run.
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

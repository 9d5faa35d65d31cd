-- KEYS[1]  run:{run_id}:events, a stream: the events of one run
-- KEYS[2]  bls_agent:{…}:books, a hash: what counts them (see add_events.lua)
-- KEYS[3]  …:owner, a string: the token of the run's writer, as long as it lives
-- ARGV[1]  our token
-- ARGV[2]  milliseconds until our lease ends if nobody renews it
-- ARGV[3]  seconds that the run lives from now on at least; one without a TTL gets none
-- ARGV[4]  a token whose owner is surely dead, or nothing
--
-- Takes or keeps the right to end a run, and lets the run live on, however long nothing
-- is written. Says {what, milliseconds, whose}: ours, with 1 if it was before; held, with
-- what is left of the other's lease (-1: for ever); or ended: the books know what we wrote
-- and no owner, so that we or somebody else has ended the run, and a request of ours that
-- comes late must not open it again. One step, because between a look and a write the
-- lease may end and somebody else's begin. What the books say stays when the lease ends:
-- so a reader knows that a writer was there and did not end the run. A lease that ends
-- later than its token says (the server's clock was set back, or somebody has written
-- here) is cut to that length: a living owner renews it long before.
redis.call('XLEN', KEYS[1])
local books = redis.call('HMGET', KEYS[2], 'owner', 'batch:' .. ARGV[1])
local holder = redis.call('GET', KEYS[3])
if holder and holder ~= ARGV[1] and holder ~= ARGV[4] then
  local left = redis.call('PTTL', KEYS[3])
  local length = math.min(tonumber(string.match(holder, '^%x+%.(%d+)') or ARGV[2]), 2 ^ 40)
  if left < 0 or left > length then
    redis.call('PEXPIRE', KEYS[3], length)
    left = length
  end
  return {'held', left, holder}
end
if not holder and not books[1] and books[2] then
  return {'ended', 0, ''}
end
if holder == ARGV[1] then  -- allowed when memory is out; SET is not
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
else
  redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
end
if books[1] ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'owner', ARGV[1])
end
local lives = redis.call('PTTL', KEYS[1])
if lives ~= -1 and lives < ARGV[3] * 1000 then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
if redis.call('PTTL', KEYS[2]) < ARGV[3] * 1000 then
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return {'ours', holder == ARGV[1] and 1 or 0, ''}

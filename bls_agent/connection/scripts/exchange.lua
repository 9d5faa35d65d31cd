-- KEYS[1]  control: {project}_控制, a list: the commands of one project
-- KEYS[2]  inflight: …:inflight:<instance>, a list: commands that this process works on
-- KEYS[3]  owner: …:owner, a string: our token as long as the in-flight list is ours
-- KEYS[4]  lists: …:inflight, a hash: list → how many of its oldest commands may have been started
-- KEYS[5]  deliveries: …:deliveries, a hash: delivery counts of commands that were put back
-- KEYS[6]  seen: …:seen, a sorted set: ids of commands that ended, by the server's time
-- ARGV     token: our token
--          limit: how many commands to take at most
--          concurrency: how many commands this process starts before the oldest is acknowledged
--          startable: the same number, used if no taken command was put back by a dead process
--          window: milliseconds for which an id counts as seen, 0 for never
--          ids: how many ids are kept at most
--          rest: bytes, id (or nothing) and flag of each command that has ended; the flag is
--          1 if our list contains the command, 0 if another process has reclaimed it
--
-- Moves commands from the head of the control list into the in-flight list, removes the
-- commands that have ended from it, and remembers their ids. Returns whether the list is
-- ours. Also returns for each command taken: its bytes, the number of the delivery (0 for an
-- invalid count), the id that it seems to have, and whether that id was seen. A pattern finds
-- the id; the caller parses the command, and looks up the right id if this one is wrong. If
-- the list is not ours, only the ids of reclaimed commands are remembered, because the
-- next delivery of these commands needs all other data.
--
-- One step, because the in-flight list must not hold a command that its process has not read,
-- and a command must not be removed before its id is remembered. Every command that a key of
-- another type would make fail comes before the first write, or is the first write. Commands
-- are taken first, because a server that is out of memory refuses LMOVE, so that nothing is
-- changed. Such a server allows LREM and the commands after it, so that a call that only
-- acknowledges commands still succeeds.
local ours = redis.call('GET', owner) == token
local payloads = {}
if ours and limit ~= '0' then
  payloads = redis.call('LRANGE', control, 0, limit - 1)
end
local before = ours and redis.call('HGET', lists, inflight)
local counted = redis.call('HLEN', deliveries) > 0
local known = redis.call('ZCARD', seen)
local now, since
if window ~= '0' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  since = now - window
end
local taken, counts, came_back = {}, {}, false
for i, payload in ipairs(payloads) do
  local delivery, is_seen = 1, 0
  if counted then
    local noted = redis.call('HGET', deliveries, redis.sha1hex(payload))
    if noted then
      delivery = #noted < 10 and string.match(noted, '^%d+$') and tonumber(noted) or 0
      counts[i] = math.max(delivery, 1)
      came_back = true
    end
  end
  local id = string.match(string.sub(payload, 1, 512), '"id"%s*:%s*"([^"\\]*)"')
  if id and #id <= 200 and since then
    local score = redis.call('ZSCORE', seen, id)
    if score and tonumber(score) > since then
      is_seen = 1
    end
  end
  taken[i] = {payload, delivery, id or '', is_seen}
end
for i, payload in ipairs(payloads) do
  redis.call('LMOVE', control, inflight, 'LEFT', 'RIGHT')
  if counts[i] then
    redis.call('HSET', deliveries, inflight .. '/' .. redis.sha1hex(payload), counts[i])
  end
end
local ended = {}
for at = rest, #ARGV, 3 do
  local payload, id, stands = ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1'
  if stands and ours and redis.call('LREM', inflight, 1, payload) == 1 and counted then
    local digest = redis.sha1hex(payload)
    redis.call('HDEL', deliveries, digest, inflight .. '/' .. digest)
  end
  if id ~= '' and now and (ours or not stands) then
    ended[#ended + 1] = string.format('%.0f', now)
    ended[#ended + 1] = id
  end
end
if #ended > 0 then
  redis.call('ZREMRANGEBYSCORE', seen, '-inf', string.format('%.0f', since))
  redis.call('ZADD', seen, unpack(ended))
  if known + #ended / 2 > tonumber(ids) then
    redis.call('ZREMRANGEBYRANK', seen, 0, -1 - ids)
  end
  redis.call('PEXPIRE', seen, window)
end
if ours and (#payloads > 0 or limit == '0') then
  local number = came_back and concurrency or startable
  if before ~= number then
    redis.call('HSET', lists, inflight, number)
  end
end
return {ours and 1 or 0, taken}

-- KEYS[1]  {project}_控制, a list: the commands of one project
-- KEYS[2]  …:inflight:<instance>, a list: what one process has taken and not ended
-- KEYS[3]  …:deliveries, a hash: how often a command was handed out that came back
-- KEYS[4]  …:seen, a sorted set: ids of commands that ended, by the server's time
-- KEYS[5]  …:owner, a string: our token as long as the in-flight list is ours
-- ARGV[1]  how many commands to take at most
-- ARGV[2]  milliseconds for which an id counts as seen, 0 for never
-- ARGV[3]  our token
--
-- Moves commands from the head of the control list into the in-flight list, and gives
-- for each: its bytes, which delivery this is (0 where no count stands, which is then
-- the first), the id that it seems to have, whether that id has been seen; -1 if the list
-- is not ours any more. The id is a guess by form, not by parsing: the caller parses, and
-- looks its own up where the guess was wrong. One step, because a command must not stand
-- in the list of a process that does not know it. Whatever may be refused because a key
-- has another type comes before the first write.
if redis.call('GET', KEYS[5]) ~= ARGV[3] then
  return -1
end
local payloads = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
if #payloads == 0 then
  return payloads
end
redis.call('LLEN', KEYS[2])
local counted = redis.call('HLEN', KEYS[3]) > 0
local since
if ARGV[2] ~= '0' then
  local now = redis.call('TIME')
  since = now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[2]
end
local taken, deliveries = {}, {}
for i, payload in ipairs(payloads) do
  local delivery, seen = 1, 0
  if counted then
    local noted = redis.call('HGET', KEYS[3], redis.sha1hex(payload))
    if noted then
      delivery = #noted < 10 and string.match(noted, '^%d+$') and tonumber(noted) or 0
      deliveries[i] = math.max(delivery, 1)
    end
  end
  local id = string.match(string.sub(payload, 1, 512), '"id"%s*:%s*"([^"\\]*)"')
  if id and #id <= 200 and since then
    local score = redis.call('ZSCORE', KEYS[4], id)
    if score and tonumber(score) > since then
      seen = 1
    end
  end
  taken[i] = {payload, delivery, id or '', seen}
end
for i, payload in ipairs(payloads) do
  redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  if deliveries[i] then
    redis.call('HSET', KEYS[3], KEYS[2] .. '/' .. redis.sha1hex(payload), deliveries[i])
  end
end
return taken

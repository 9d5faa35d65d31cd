-- KEYS[1]  {project}_项目状态, a string: the status of all replicas together
-- KEYS[2]  bls_agent:{…}:instances, a hash: instance -> "<token> <expiry> <status>", the
--          expiry in milliseconds of this server's clock; the token contains the number of
--          milliseconds for which an entry is valid, like the token of a lease
-- ARGV[1]  the instance that writes
-- ARGV[2]  its token, which differs from that of another process with the same name
-- ARGV[3]  its status, or its last status if it ends
-- ARGV[4]  milliseconds for which its status is valid; 0 if the instance ends
-- ARGV[5]… every status, the worst first
--
-- Records the status of one replica, drops expired entries, and writes the worst status of
-- the replicas that run. The last replica that ends writes its last status, which stays. If
-- an entry expires later than its token allows, because the clock was set back, its expiry
-- is corrected. Invalid entries are dropped, because a replica that runs writes its entry
-- again. Returns {twin, dropped}: the token of another process that uses the same instance
-- name, or nothing; and the number of invalid entries.
--
-- One step, because two replicas that read and then write would overwrite each other's
-- status with an old one.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'string' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE the status key holds a ' .. kind)
end

local instance, token, status, lasts = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local rank = {}
for place = 5, #ARGV do
  rank[ARGV[place]] = place
end

local worst, till = nil, 0
local function hear(word, expiry)
  if worst == nil or rank[word] < rank[worst] then
    worst = word
  end
  till = math.max(till, expiry)
end

local gone, cut, twin, odd = {}, {}, '', 0
local entries = redis.call('HGETALL', KEYS[2])
for at = 1, #entries, 2 do
  local who = entries[at]
  local whose, expiry, word = string.match(entries[at + 1], '^(%S+) (%d+) (.+)$')
  local length = string.match(whose or '', '^%x+%.(%d+)')
  if rank[word or ''] == nil or not length or #length > 12 then
    expiry, odd = 0, odd + 1
  else
    expiry = tonumber(expiry)
    if expiry > now + length then
      expiry = now + length
      cut[who] = table.concat({whose, string.format('%.0f', expiry), word}, ' ')
    end
  end
  if expiry <= now then
    gone[#gone + 1] = who
  elseif who ~= instance then
    hear(word, expiry)
  elseif whose ~= token then
    twin = whose
    if lasts == 0 then
      hear(word, expiry)
    end
  elseif lasts == 0 then
    gone[#gone + 1] = who
  end
end
if lasts > 0 then
  hear(status, now + lasts)
end

local written
if worst then
  written = redis.pcall('SET', KEYS[1], worst, 'PX', string.format('%.0f', till - now))
else
  written = redis.pcall('SET', KEYS[1], status)
end
if type(written) == 'table' and written.err then
  return written
end
for who, entry in pairs(cut) do
  redis.call('HSET', KEYS[2], who, entry)
end
for _, who in ipairs(gone) do
  redis.call('HDEL', KEYS[2], who)
end
if lasts > 0 then
  local entry = table.concat({token, string.format('%.0f', now + lasts), status}, ' ')
  redis.call('HSET', KEYS[2], instance, entry)
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', till))
end
return {twin, odd}

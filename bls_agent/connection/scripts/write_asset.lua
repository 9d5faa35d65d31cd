-- KEYS[1]  asset:metadata:{id}, a hash: one asset
-- KEYS[2]  asset:index, a hash: id to summary
-- KEYS[3]  asset:sync:changed, a list of ids
-- KEYS[4]  …:owner, a string: the token of the running synchronisation
-- KEYS[5]  asset:category:{category}, a set: the category of the asset
-- KEYS[…]  the sets of all other categories
-- ARGV[1]  token of the synchronisation that writes; nothing for a single write
-- ARGV[2]  id
-- ARGV[3]  summary for the index; nothing to delete the asset
-- ARGV[4]  how many changes are kept
-- ARGV[5]  the stored creation time if readers cannot read it, or nothing
-- ARGV[…]  field and value in turn; no value to remove the field
--
-- Writes or deletes an asset. Returns "created", "updated" or "deleted". Returns "same" and
-- writes nothing if the asset is already as requested, so that a request that is repeated
-- after a lost reply changes nothing. Returns "lost" if another synchronisation owns KEYS[4].
--
-- One step, because a reader must never find an asset that is half old and half new, or an
-- asset in the index without metadata. Every command that a key of another type would make
-- fail comes before the first write. A server that is out of memory refuses the first write;
-- if it executes this write, it does not refuse the later writes. This script is not used on
-- a cluster, where the keys are in different slots.
local id, summary = ARGV[2], ARGV[3]
local names, values, removed = {}, {}, {}
for at = 6, #ARGV, 2 do
  names[#names + 1] = ARGV[at]
  values[#values + 1] = ARGV[at + 1]
end

if ARGV[1] ~= '' and redis.call('GET', KEYS[4]) ~= ARGV[1] then
  return 'lost'
end
local existed = redis.call('HLEN', KEYS[1]) > 0
redis.call('HLEN', KEYS[2])
redis.call('LLEN', KEYS[3])
for at = 5, #KEYS do
  redis.call('SCARD', KEYS[at])
end

local touched = 0
local outcome
if summary == '' then
  touched = redis.call('DEL', KEYS[1]) + redis.call('HDEL', KEYS[2], id)
  for at = 5, #KEYS do
    touched = touched + redis.call('SREM', KEYS[at], id)
  end
  outcome = 'deleted'
else
  local before = redis.call('HMGET', KEYS[1], 'created_at', unpack(names))
  local fields = {}
  for at = 1, #names do
    local value = values[at]
    if value == '' then
      if before[at + 1] then
        removed[#removed + 1] = names[at]
      end
    elseif before[at + 1] ~= value then
      fields[#fields + 1] = names[at]
      fields[#fields + 1] = value
    end
  end
  -- A creation time that another program wrote is kept if readers can read it.
  local created = before[1] and before[1] ~= ARGV[5]
  if #fields + #removed > 0 or not created then
    local now = redis.call('TIME')[1]
    fields[#fields + 1] = 'updated_at'
    fields[#fields + 1] = now
    if not created then
      fields[#fields + 1] = 'created_at'
      fields[#fields + 1] = now
    end
    redis.call('HSET', KEYS[1], unpack(fields))
    if #removed > 0 then
      redis.call('HDEL', KEYS[1], unpack(removed))
    end
    touched = 1
  end
  if redis.call('HGET', KEYS[2], id) ~= summary then
    redis.call('HSET', KEYS[2], id, summary)
    touched = touched + 1
  end
  touched = touched + redis.call('SADD', KEYS[5], id)
  for at = 6, #KEYS do
    touched = touched + redis.call('SREM', KEYS[at], id)
  end
  outcome = existed and 'updated' or 'created'
end
if touched == 0 then
  return 'same'
end
redis.call('RPUSH', KEYS[3], id)
redis.call('LTRIM', KEYS[3], -ARGV[4], -1)
return outcome

-- KEYS[1]  run:{run_id}:events, a stream: the events of one run
-- KEYS[2]  bls_agent:{…}:books, a hash: the metadata of the run, called the books below
-- KEYS[3]  …:owner, a string: the token of the run's writer, with a TTL
-- ARGV[1]  about how many events are kept
-- ARGV[2]  shortest TTL of the run in seconds; a run to which another program has given no
--          TTL gets this TTL only with the event system.close
-- ARGV[3]  a sequence that the new sequences must exceed, 0 for none
-- ARGV[4]  milliseconds of an id that the new ids must exceed, 0 for none
-- ARGV[5]  the number of that id
-- ARGV[6]  the token of this writer, or nothing
-- ARGV[7]  the number of this batch; it grows with each batch of a writer
-- ARGV[8]  milliseconds of the lease of a writer that may end the run, 0 for others
-- ARGV[9]  1 if the run ends with this batch: its last event is written only if the
--          run is ours
-- ARGV[…]  nine for each event: its sequence, or nothing to let the script count;
--          timestamp; agent's id, type, name; team; category; action; data
--
-- Adds events, and numbers the events of all writers of a run in one sequence. Returns the
-- last sequence and the ids of the events. Then comes "ours" if the batch has renewed the
-- lease of the writer, so that a busy writer keeps its run although its renewals are late.
--
-- One step, because otherwise an event could be written after an event with a higher
-- sequence, and because a batch must be recognised if it is sent again after a lost reply.
-- The script does not add such a batch again. It returns the last sequence and id of the
-- batch, "again", the number of its events, and "ours" if the lease was renewed.
--
-- The books contain
--   "sequence", "id"  sequence and id of the last event that this script has counted
--   "owner"           the token of a writer that has not ended the run
--   "closed"          the id of the last system.close, until a lifecycle.started comes
--                     after it
--   "batch:<token>"   number, last sequence, last id and number of events of each
--                     writer's last batch
--
-- Every command that a key of another type would make fail comes before the first write.
local stream, token, LARGEST = KEYS[1], ARGV[6], 999999999999999
local batch = 'batch:' .. token
local books = redis.call('HMGET', KEYS[2], 'sequence', 'id', 'owner', batch)
local holder = redis.call('GET', KEYS[3])
local lives, ends_run = redis.call('PTTL', stream), false

local function count_of(told)
  return told and #told < 16 and string.match(told, '^%d+$') and tonumber(told) or nil
end
local function live_on()
  if lives < ARGV[2] * 1000 and (lives ~= -1 or ends_run) then
    redis.call('EXPIRE', stream, ARGV[2])
  end
  if redis.call('PTTL', KEYS[2]) < ARGV[2] * 1000 then
    redis.call('EXPIRE', KEYS[2], ARGV[2])
  end
end

if token ~= '' and books[4] then
  local number, sequence, id, count =
    string.match(books[4], '^(%d+) (%d+) (%d+%-%d+) (%d+)$')
  number, sequence, count = count_of(number), count_of(sequence), count_of(count)
  if number and sequence and count and number >= tonumber(ARGV[7]) then
    if holder == token and ARGV[8] ~= '0' and ARGV[9] ~= '1' then
      redis.call('PEXPIRE', KEYS[3], ARGV[8])
      live_on()
      return {sequence, id, 'again', count, 'ours'}
    end
    return {sequence, id, 'again', count}
  end
end

-- If there is no stream, lifecycle.started begins a new run, and the books of the earlier run
-- are deleted. This is not done while another writer holds the lease.
local is_new = lives == -2 and (not holder or holder == token)
  and ARGV[16] == 'lifecycle' and ARGV[17] == 'started'
if is_new then
  books = {}
end

-- Events that other programs have added after the last counted event are counted, too. For
-- this, the sequence continues with the newest readable sequence of the last ten entries. If
-- none of them has a readable sequence, the length of the stream is used.
local sequence, from, strange = count_of(books[1]), '-', true
local known = books[2] and string.match(books[2], '^%d+%-%d+$')
if known then
  local milliseconds, number = string.match(known, '^(%d+)-(%d+)$')
  local behind = milliseconds .. '-' .. string.format('%.0f', number + 1)
  local found = redis.pcall('XRANGE', stream, behind, '+', 'COUNT', 1)
  if found.err then
    known = nil
  elseif sequence then
    from, strange = known, #found > 0
  end
end
sequence = sequence or 0
if strange then
  local told
  for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', from, 'COUNT', 10)) do
    for at = 1, #entry[2], 2 do
      if entry[2][at] == 'sequence' then
        told = told or count_of(entry[2][at + 1])
      end
    end
  end
  sequence = math.max(sequence, told or redis.call('XLEN', stream))
end
-- If the server has lost events, the writer knows a higher sequence than the server.
if not is_new then
  sequence = math.max(sequence, tonumber(ARGV[3]))
end

-- We may not end the run while another writer holds the lease. If no writer holds the lease,
-- the run is ours in two cases: the books name us as owner, or the books contain neither an
-- owner nor a batch of ours, because the server has lost data. If the books contain a batch
-- of ours but no owner, another process has ended the run.
local ends = ARGV[9] == '1'
local ours = holder == token
  or (not holder and (books[3] == token or not (books[3] or books[4])))
local last = #ARGV - (ends and not ours and 9 or 0)

-- The clock of a new server may be earlier than the clock of the server before. Its ids
-- must still be higher than the ids that readers have read.
local as = '*'
if ARGV[4] ~= '0' and last > 9 then
  local time = redis.call('TIME')
  if tonumber(ARGV[4]) >= time[1] * 1000 + math.floor(time[2] / 1000) then
    as = ARGV[4] .. '-' .. string.format('%.0f', ARGV[5] + 1)
  end
end

local told, id, count = {0}, known or '0-0', 1
local add, format, kept = redis.pcall, string.format, ARGV[1]
local closed, begins
for at = 10, last, 9 do
  local counted, action = ARGV[at], ARGV[at + 7]
  if counted == '' then
    sequence = math.min(sequence + 1, LARGEST)
    counted = format('%.0f', sequence)
  else
    sequence = math.max(sequence, tonumber(counted))
  end
  local added
  repeat
    local tried = as
    as = '*'
    added = add('XADD', stream, 'MAXLEN', '~', kept, tried,
      'timestamp', ARGV[at + 1], 'sequence', counted,
      'source_agent_id', ARGV[at + 2], 'source_agent_type', ARGV[at + 3],
      'source_agent_name', ARGV[at + 4], 'source_team_name', ARGV[at + 5],
      'event_category', ARGV[at + 6], 'event_action', action, 'data', ARGV[at + 8])
  until tried == '*' or type(added) == 'string'
  if type(added) ~= 'string' then
    return added
  end
  id, count = added, count + 1
  told[count] = added
  if action == 'close' and ARGV[at + 6] == 'system' then
    closed, ends_run = added, true
  elseif action == 'started' and ARGV[at + 6] == 'lifecycle' then
    closed, begins = nil, true
  end
end
told[1] = sequence

local noted = {'sequence', format('%.0f', sequence), 'id', id}
local function note(name, value)
  noted[#noted + 1], noted[#noted + 2] = name, value
end
if closed then
  note('closed', closed)
elseif begins then
  redis.call('HDEL', KEYS[2], 'closed')
end
if token ~= '' then
  note(batch, table.concat({ARGV[7], format('%.0f', sequence), id, (#ARGV - 9) / 9}, ' '))
end
local holds = ours and not ends and ARGV[8] ~= '0'
if holds and books[3] ~= token then
  note('owner', token)
end
if is_new then  -- after the first XADD, which the server refuses if memory is out
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[2], unpack(noted))
if holds then
  if holder then
    redis.call('PEXPIRE', KEYS[3], ARGV[8])
  else
    redis.call('SET', KEYS[3], token, 'PX', ARGV[8])
  end
  count = count + 1
  told[count] = 'ours'
elseif ends and ours then
  redis.call('HDEL', KEYS[2], 'owner')
  redis.call('DEL', KEYS[3])
end
live_on()
return told

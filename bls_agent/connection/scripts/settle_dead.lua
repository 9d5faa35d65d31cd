-- KEYS[1]  control: {project}_控制, a list: the commands of one project
-- KEYS[2]  dead_letters: …:dead, a list: commands that were handed out too often
-- KEYS[3]  deliveries: …:deliveries, a hash: delivery counts of commands that were put back
-- ARGV     requeues: 1 to put the commands into the control list again, 0 to discard them
--          rest: the bytes of each command
--
-- Removes all copies of each command from the dead letters. If `requeues` is 1, appends them to
-- the control list and deletes their delivery counts, so that the next delivery is the first.
-- Returns the number of copies of each command, 0 if another operator was faster.
--
-- One step, because a command must always be in exactly one list. Every command that a key of
-- another type would make fail comes before the first write. The first write is LREM, because
-- a server that is out of memory allows LREM, and then also allows RPUSH.
redis.call('LLEN', control)
redis.call('LLEN', dead_letters)
redis.call('HLEN', deliveries)
local settled = {}
for at = rest, #ARGV do
  local payload = ARGV[at]
  local copies = redis.call('LREM', dead_letters, 0, payload)
  if requeues == '1' and copies > 0 then
    for _ = 1, copies do
      redis.call('RPUSH', control, payload)
    end
    redis.call('HDEL', deliveries, redis.sha1hex(payload))
  end
  settled[#settled + 1] = copies
end
return settled

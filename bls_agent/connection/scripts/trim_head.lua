-- KEYS[1]  {project}_控制, a list: the commands of one project
-- ARGV[1]  the command that was handled, byte for byte
--
-- Cuts the head of the list if it is still the command that was handled, and says so
-- with 1; otherwise leaves the list alone and says 0. One step, because between a
-- look and an LTRIM somebody else may have trimmed: ours would then cut a command
-- that nobody has read.
if redis.call('LINDEX', KEYS[1], 0) == ARGV[1] then
  redis.call('LTRIM', KEYS[1], 1, -1)
  return 1
end
return 0

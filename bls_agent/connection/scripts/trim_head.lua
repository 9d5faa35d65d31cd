-- KEYS[1]  {project}_控制, a list: the commands of one project
-- ARGV[1]  the command that was handled, byte for byte
--
-- Removes the first command of the list and returns 1, if it is the command that was
-- handled. Otherwise changes nothing and returns 0. One step, because another process may
-- trim the list between LINDEX and LTRIM. Our LTRIM would then remove a command that no
-- process has read.
if redis.call('LINDEX', KEYS[1], 0) == ARGV[1] then
  redis.call('LTRIM', KEYS[1], 1, -1)
  return 1
end
return 0

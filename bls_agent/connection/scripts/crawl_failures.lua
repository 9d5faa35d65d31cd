-- Counts the failures of crawl requests; the two scripts that need the count begin with this file.

-- Counts a failure in the key of a request. A value that another program has written and that
-- is no count is replaced, because otherwise the retries of the request would never end. A key
-- of another type is left alone.
local function count_failure(key)
  local failures = redis.pcall('INCR', key)
  if type(failures) == 'table' and string.find(failures.err, 'WRONGTYPE', 1, true) then
    return
  end
  if type(failures) ~= 'number' or failures < 1 or failures >= 1000000000 then
    redis.pcall('DEL', key)
    redis.pcall('INCR', key)
  end
end


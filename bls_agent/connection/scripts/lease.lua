-- Stands before every script that takes, keeps or cuts a lease. The key of a lease lies
-- beside what is owned and is a string: "<token>" of the owner, perhaps with words of its
-- own behind it, or "<token> ended". A token is "<hex>.<milliseconds of the lease>@<process>".
--
-- Says whose the lease is: {standing, milliseconds, whose, words, cut}
--   ours   by our token
--   held   somebody else has it, for so many milliseconds
--   free   nobody has it, or an owner that is surely dead, who is named
--   ended  we have given it back: a late request of ours must not take it again
-- A lease of somebody else that ends later than its token says (ours where it says
-- nothing) is cut to that length: the server's clock was set back, or somebody has
-- written here; an owner that lives renews it long before.
local function look_at_lease(key, token, milliseconds, dead)
  local lease = redis.call('GET', key)
  if not lease then
    return 'free', 0, '', ''
  end
  local whose, words = string.match(lease, '^(%S*) ?(.*)$')
  if words == 'ended' then
    return whose == token and words or 'free', 0, '', ''
  elseif whose == token then
    return 'ours', 0, whose, words
  elseif whose == dead and whose ~= '' then
    return 'free', 0, whose, words
  end
  local length = string.match(whose, '^%x+%.(%d+)')
  length = math.min(tonumber(length or milliseconds), 2 ^ 40)
  local left = redis.call('PTTL', key)
  local cut = left < 0 or left > length
  if cut then
    redis.call('PEXPIRE', key, length)
    left = length
  end
  return 'held', left, whose, words, cut
end
-- Takes a lease that is free, and begins the time of one that is ours anew, which is
-- allowed when memory is out; SET is not.
local function hold_lease(key, standing, token, milliseconds)
  if standing == 'ours' then
    redis.call('PEXPIRE', key, milliseconds)
  else
    redis.call('SET', key, token, 'PX', milliseconds)
  end
end

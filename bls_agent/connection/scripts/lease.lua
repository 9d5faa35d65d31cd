-- Functions for the scripts that judge the lease of another process. The key of a lease is a
-- string: the owner's "<token>", perhaps followed by a blank and words of the owner, or
-- "<token> ended". A token is "<hex>.<milliseconds of the lease>@<process>".
--
-- Returns standing, milliseconds, whose (the owner's token), words (the owner's words) and
-- cut (whether the TTL was limited, see below). Values of standing:
--   ours   our token owns the lease
--   held   another process owns the lease, for so many milliseconds
--   free   no process owns the lease, or a dead process does, whose token is then returned
--   ended  we have given the lease back; a late request of ours must not take it again
-- The TTL of another process's lease is limited to the length in its token (to our length
-- if the token contains none), because the server's clock may have been set back, or another
-- program may have written the key. A live owner renews its lease before this TTL ends.
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
-- Takes a free lease, or renews our lease. Renewing uses PEXPIRE, because a server that is
-- out of memory refuses SET.
local function hold_lease(key, standing, token, milliseconds)
  if standing == 'ours' then
    redis.call('PEXPIRE', key, milliseconds)
  else
    redis.call('SET', key, token, 'PX', milliseconds)
  end
end

-- Keep an entry, unless it was deleted or has ended. Returns whether it is kept.
-- ARGV 3 member, max_entries, max_bytes, is_open, background, status, items, response
local member = ARGV[3]
local key = P .. 'entry:' .. member

local function put()
  local bytes = #ARGV[9] + #ARGV[10]
  if redis.call('ZSCORE', P .. 'ends', member) then
    grow(member, bytes - (tonumber(redis.call('HGET', key, 'bytes')) or 0))
  else
    redis.call('UNLINK', key, P .. 'events:' .. member)
    redis.call('ZINCRBY', P .. 'entries', 1, (split(member)))
    grow(member, bytes)
  end
  redis.call('HSET', key, 'open', ARGV[6], 'background', ARGV[7], 'status', ARGV[8], 'items', ARGV[9],
    'response', ARGV[10], 'bytes', bytes)
  redis.call('PEXPIRE', key, age)
  redis.call('PEXPIRE', P .. 'events:' .. member, age)
  redis.call('ZADD', P .. 'ends', now + age, member)
  touch(member)
  extend('ends', 'entries')
end

remove_old()
if redis.call('EXISTS', P .. 'gone:' .. member) == 1 then return 0 end
if redis.call('ZSCORE', P .. 'ends', member) and redis.call('HGET', key, 'open') == '0' then return 1 end
local max_entries, max_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
put()
make_room(max_entries, max_bytes)
if redis.call('ZSCORE', P .. 'ends', member) then return 1 end
if #ARGV[9] + #ARGV[10] > max_bytes then return 0 end
-- It fits, so the books were wrong; they have begun anew.
put()
return 1

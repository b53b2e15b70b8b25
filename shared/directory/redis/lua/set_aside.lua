-- Rename keys that cannot be what they are for, so that they can be made again, and tell the stream. After that, the data
-- counts as another life: every worker has the time of its lease to come back.
-- KEYS stream, epoch, then keys that may be damaged
-- ARGV stream_length, who tells it, what comes before the names of keys that are set aside, how long these are kept (ms),
--      a name for the new life, then for each further key how it can be read, or 'rename' if it is damaged for certain
local damaged = {}

local function set_aside(key)
  redis.call('RENAME', key, ARGV[3] .. key)
  redis.call('PEXPIRE', ARGV[3] .. key, ARGV[4])
  damaged[#damaged + 1] = key
end

local function is_damaged(key, how)
  local found
  if how == 'set' then
    found = redis.pcall('SCARD', key)
  elseif how == 'hash' then
    found = redis.pcall('HGET', key, 'incarnation')
  elseif how == 'string' then
    found = redis.pcall('GET', key)
  else
    return redis.pcall('PTTL', key) ~= -2
  end
  return type(found) == 'table' and found.err ~= nil
end

local function tell(key)
  return redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'k', 'damaged', 'key', key,
    'by', ARGV[2])
end

for at = 3, #KEYS do
  if is_damaged(KEYS[at], ARGV[at + 3]) then set_aside(KEYS[at]) end
end
-- Another kind of value, or a stream whose last id leaves no room for another.
local told = tell('')
if type(told) == 'table' and told.err then set_aside(KEYS[1]) end
for _, key in ipairs(damaged) do tell(key) end
if #damaged > 0 then redis.call('SET', KEYS[2], ARGV[5]) end
return damaged

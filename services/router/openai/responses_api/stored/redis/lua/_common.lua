-- KEYS prefix of all keys
-- ARGV now_ms (empty: Redis's own clock), age_ms, and what the script names
local P = KEYS[1]
local age = tonumber(ARGV[2])
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A member is TENANT:ID; neither has a colon.
local function split(member)
  local at = string.find(member, ':', 1, true)
  return string.sub(member, 1, at - 1), string.sub(member, at + 1)
end

-- No key outlives the youngest entry by more than its age.
local function extend(...)
  for _, name in ipairs({...}) do
    local key = P .. name
    if redis.call('PTTL', key) < age then redis.call('PEXPIRE', key, age) end
  end
end

local function touch(member)
  local tenant, id = split(member)
  redis.call('ZADD', P .. 'shelf:' .. tenant, redis.call('INCR', P .. 'clock'), id)
  extend('clock', 'shelf:' .. tenant)
end

local function grow(member, change)
  local tenant = split(member)
  local bytes = string.format('%d', change)
  redis.call('HINCRBY', P .. 'sizes', member, bytes)
  redis.call('ZINCRBY', P .. 'bytes', bytes, tenant)
  redis.call('INCRBY', P .. 'total', bytes)
  extend('sizes', 'bytes', 'total')
end

local function remove(member)
  if redis.call('ZREM', P .. 'ends', member) == 0 then return 0 end
  local tenant, id = split(member)
  grow(member, -(tonumber(redis.call('HGET', P .. 'sizes', member)) or 0))
  redis.call('HDEL', P .. 'sizes', member)
  redis.call('ZREM', P .. 'shelf:' .. tenant, id)
  if tonumber(redis.call('ZINCRBY', P .. 'entries', -1, tenant)) <= 0 then
    redis.call('ZREM', P .. 'entries', tenant)
    redis.call('ZREM', P .. 'bytes', tenant)
  end
  redis.call('UNLINK', P .. 'entry:' .. member, P .. 'events:' .. member)
  if redis.call('EXISTS', P .. 'ends') == 0 then redis.call('UNLINK', P .. 'total') end
  return 1
end

local function remove_old()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ends', '-inf', now)) do
    remove(member)
  end
end

-- Remove the least recently used entry of the tenant with most of `what`. Returns false if the books contradict each other.
local function remove_first(what)
  local tenant = redis.call('ZREVRANGE', P .. what, 0, 0)[1]
  if not tenant then return false end
  local shelf = P .. 'shelf:' .. tenant
  local num_entries = tonumber(redis.call('ZSCORE', P .. 'entries', tenant) or 0)
  if redis.call('ZCARD', shelf) ~= num_entries then return false end
  local id = redis.call('ZRANGE', shelf, 0, 0)[1]
  return id and remove(tenant .. ':' .. id) == 1
end

-- Remove entries while there are too many. If Redis itself has evicted a part of the books, they begin anew, without an entry.
local function make_room(max_entries, max_bytes)
  local is_whole = true
  while is_whole and redis.call('ZCARD', P .. 'ends') > max_entries do
    is_whole = remove_first('entries')
  end
  while is_whole and tonumber(redis.call('GET', P .. 'total') or 0) > max_bytes do
    is_whole = remove_first('bytes')
  end
  if is_whole then return end
  for _, name in ipairs({'bytes', 'entries'}) do
    for _, tenant in ipairs(redis.call('ZRANGE', P .. name, 0, -1)) do
      redis.call('UNLINK', P .. 'shelf:' .. tenant)
    end
  end
  for _, name in ipairs({'ends', 'sizes', 'bytes', 'entries', 'total'}) do
    redis.call('UNLINK', P .. name)
  end
end

-- Everyone alive and how far the stream is, as of one moment.
-- KEYS names, stream, epoch
-- ARGV prefix of lease keys, a name for this life of the data if it has none yet
local epoch = redis.call('GET', KEYS[3])
if not epoch then
  epoch = ARGV[2]
  -- A full Redis refuses what may take memory as a script's first write, and nothing after it. No name is empty.
  redis.call('SREM', KEYS[1], '')
  redis.call('SET', KEYS[3], epoch)
end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local workers = {}
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local lease = ARGV[1] .. name
  -- A key with another kind of value hides its own worker, and no other.
  local found = redis.pcall('HMGET', lease, 'incarnation', 'record', 'load', 'sequence',
    'lease_ms', 'refused', 'seal')
  if found.err then
    workers[#workers + 1] = {name}
  elseif found[1] then
    workers[#workers + 1] = {name, found[1], found[2], found[3], found[4], found[5],
      found[6], found[7], redis.call('PTTL', lease)}
  else
    redis.call('SREM', KEYS[1], name)
  end
end
return {epoch, last[1] and last[1][1] or '0-0', workers}

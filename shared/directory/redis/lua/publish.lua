-- Apply one update, fenced by incarnation and sequence, and tell the stream.
-- KEYS lease, blocks, stream
-- ARGV name, incarnation, sequence, tier digit, cleared (0 or 1), removed and stored as 8 bytes
--      per block, stream_length, most bytes that an entry of the stream may carry
local name, incarnation, sequence, tier = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local removed, stored = ARGV[6], ARGV[7]
local lease = read_lease(KEYS[1], incarnation)
if not lease then return {'unknown'} end
if lease.refused then return {'refused', lease.refused} end
if sequence <= lease.sequence then return {'done'} end
if sequence ~= lease.sequence + 1 then return {'gap', tostring(lease.sequence)} end

-- Lua's stack bounds how many values one command can get.
local function each(command, members)
  local changed = 0
  for first = 1, #members, 4000 do
    local last = math.min(first + 3999, #members)
    changed = changed + redis.call(command, KEYS[2], unpack(members, first, last))
  end
  return changed
end

local function members(packed)
  local list = {}
  for at = 1, #packed, 8 do list[#list + 1] = tier .. string.sub(packed, at, at + 7) end
  return list
end

local held = lease.held[tier]
if ARGV[5] == '1' then
  local gone = {}
  for _, member in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    if string.sub(member, 1, 1) == tier then gone[#gone + 1] = member end
  end
  held = held - each('SREM', gone)
end
held = held - each('SREM', members(removed))
if tier == '0' then
  local room = math.max(lease.num_blocks - held, 0)
  stored = string.sub(stored, 1, room * 8)
end
held = held + each('SADD', members(stored))
redis.call('HSET', KEYS[1], 'sequence', sequence, 'blocks' .. tier, held)
-- The set may have been made just now; it ends with its lease.
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
if #stored + #removed > tonumber(ARGV[9]) then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[8], '*', 'n', name, 'i', incarnation,
    'k', 'reset', 's', sequence)
else
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[8], '*', 'n', name, 'i', incarnation,
    'k', 'delta', 's', sequence, 't', tier, 'c', ARGV[5], 'r', removed, 'a', stored)
end
return {'done'}

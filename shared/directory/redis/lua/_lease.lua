-- Put before every script.

-- A whole number as the directory writes it, or nil: anybody with access to Redis may have written anything.
local function whole(text)
  if not text or #text > 15 or not string.match(text, '^%d+$') then return nil end
  return tonumber(text)
end

-- What a lease says of this incarnation, or nil if it is another's or no lease.
local function read_lease(key, incarnation)
  local found = redis.call('HMGET', key, 'incarnation', 'refused', 'sequence', 'num_blocks',
    'blocks0', 'blocks1', 'blocks2')
  if found[1] ~= incarnation then return nil end
  local lease = {
    refused = found[2], sequence = whole(found[3]), num_blocks = whole(found[4]),
    held = {['0'] = whole(found[5]), ['1'] = whole(found[6]), ['2'] = whole(found[7])},
  }
  local held = lease.held
  if not (lease.sequence and lease.num_blocks and held['0'] and held['1'] and held['2']) then
    return nil
  end
  lease.num_held = held['0'] + held['1'] + held['2']
  return lease
end

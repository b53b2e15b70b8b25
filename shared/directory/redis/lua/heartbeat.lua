-- Renew the lease and its blocks together, with all that the worker says of itself. A lease that is not what this worker
-- has made of it counts as unknown: the worker registers again and sends all that it holds.
-- KEYS lease, blocks, names, stream
-- ARGV name, incarnation, load, record, seal, lease_ms, num_blocks, first and last sequence that can have arrived,
--      stream_length, whether readers are to look at once (0 or 1)
local lease = read_lease(KEYS[1], ARGV[2])
if not lease then return {'unknown'} end
if lease.refused then return {'refused', lease.refused} end
if lease.sequence < tonumber(ARGV[8]) or lease.sequence > tonumber(ARGV[9]) then
  return {'unknown'}
end
if redis.call('SCARD', KEYS[2]) ~= lease.num_held then return {'unknown'} end
-- The renewal comes first. A full Redis refuses what may take memory as a script's first write, and nothing after it.
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'load', ARGV[3], 'record', ARGV[4], 'seal', ARGV[5],
  'lease_ms', ARGV[6], 'num_blocks', ARGV[7])
if ARGV[11] == '1' then
  -- Who reads this reads all leases again.
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[10], '*', 'n', ARGV[1], 'i', ARGV[2], 'k', 'joined')
end
return {'done'}

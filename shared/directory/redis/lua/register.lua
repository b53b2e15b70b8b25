-- Take a worker in. The same incarnation keeps its blocks, unless its lease is not what it has made of it; an older one's
-- set can no longer be reached through the lease and ends with its own expiry.
-- KEYS lease, blocks, names, stream
-- ARGV name, incarnation, record, seal, lease_ms, num_blocks, last sequence that can have arrived, stream_length
local lease = read_lease(KEYS[1], ARGV[2])
if lease and lease.refused then return {'refused', lease.refused} end
local keeps = lease and lease.sequence <= tonumber(ARGV[7])
  and redis.call('SCARD', KEYS[2]) == lease.num_held
if keeps then
  -- A full Redis refuses what may take memory as a script's first write, and nothing after it.
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
else
  redis.call('UNLINK', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'sequence', 0, 'load', '',
    'blocks0', 0, 'blocks1', 0, 'blocks2', 0)
end
redis.call('HSET', KEYS[1], 'record', ARGV[3], 'seal', ARGV[4], 'lease_ms', ARGV[5],
  'num_blocks', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[8], '*', 'n', ARGV[1], 'i', ARGV[2], 'k', 'joined')
return {'done'}

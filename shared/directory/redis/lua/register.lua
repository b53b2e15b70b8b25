-- Take a worker in. The same incarnation keeps its blocks; an older one's set can no longer be
-- reached through the lease and ends with its own expiry.
-- KEYS lease, blocks, names, stream
-- ARGV name, incarnation, record, lease_ms, num_blocks, stream_length
local known = redis.call('HMGET', KEYS[1], 'incarnation', 'refused')
if known[1] == ARGV[2] and known[2] then return {'refused', known[2]} end
if known[1] ~= ARGV[2] then
  redis.call('UNLINK', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'sequence', 0, 'load', '',
    'blocks0', 0, 'blocks1', 0, 'blocks2', 0)
end
redis.call('HSET', KEYS[1], 'record', ARGV[3], 'lease_ms', ARGV[4], 'num_blocks', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], '*', 'n', ARGV[1], 'i', ARGV[2], 'k', 'joined')
return {'done'}

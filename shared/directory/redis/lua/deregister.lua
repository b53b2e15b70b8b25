-- Leave at once.
-- KEYS lease, blocks, names, stream
-- ARGV name, incarnation, stream_length
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[2] then return {'unknown'} end
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[3], '*', 'n', ARGV[1], 'i', ARGV[2], 'k', 'left')
return {'done'}

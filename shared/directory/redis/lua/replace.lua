-- Put a staged snapshot in place of what was known.
-- KEYS lease, blocks, staged, stream
-- ARGV name, incarnation, sequence, blocks per tier (three numbers), stream_length
local lease = read_lease(KEYS[1], ARGV[2])
local staged = redis.call('SCARD', KEYS[3])
local answer
if not lease then
  answer = {'unknown'}
elseif lease.refused then
  answer = {'refused', lease.refused}
elseif tonumber(ARGV[3]) < lease.sequence then
  answer = {'done'}
elseif staged ~= ARGV[4] + ARGV[5] + ARGV[6] then
  answer = {'incomplete', tostring(staged)}
end
if answer then
  redis.call('UNLINK', KEYS[3])
  return answer
end
redis.call('UNLINK', KEYS[2])
if staged > 0 then
  redis.call('RENAME', KEYS[3], KEYS[2])
  redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
end
redis.call('HSET', KEYS[1], 'sequence', ARGV[3], 'blocks0', ARGV[4], 'blocks1', ARGV[5],
  'blocks2', ARGV[6])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[7], '*', 'n', ARGV[1], 'i', ARGV[2],
  'k', 'reset', 's', ARGV[3])
return {'done'}

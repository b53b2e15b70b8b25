-- Somebody found that a worker must not serve: it hears of it with its next heartbeat.
-- KEYS lease
-- ARGV incarnation, why
if redis.call('HGET', KEYS[1], 'incarnation') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'refused', ARGV[2])
end
return {'done'}

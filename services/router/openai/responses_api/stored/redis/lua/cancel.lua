-- Ask for the end of a run. Returns whether it is being made.
-- ARGV 3 member, lease_ms
local key = P .. 'run:' .. ARGV[3]
local beat = tonumber(redis.call('HGET', key, 'beat'))
if not beat or now - beat > tonumber(ARGV[4]) then return 0 end
redis.call('HSET', key, 'stop', 1)
return 1

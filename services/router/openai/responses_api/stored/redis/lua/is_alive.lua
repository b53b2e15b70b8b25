-- Return whether a run is being made. One whose last beat is too old is missed first, and lost if no beat comes for another
-- while: after an interruption of Redis, all beats are old. A lost one that goes on is to end.
-- ARGV 3 member, lease_ms, grace_ms
local key = P .. 'run:' .. ARGV[3]
local found = redis.call('HMGET', key, 'beat', 'missed')
local beat, missed = tonumber(found[1]), tonumber(found[2])
if beat and now - beat <= tonumber(ARGV[4]) then return 1 end
if missed and now - missed > tonumber(ARGV[5]) then
  redis.call('HSET', key, 'stop', 1)
  return 0
end
if not missed then redis.call('HSET', key, 'missed', now) end
redis.call('PEXPIRE', key, age)
return 1

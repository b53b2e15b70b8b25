-- Give up the lead, and take the report away.
-- KEYS leader, term, routers
-- ARGV name
local term = redis.call('GET', KEYS[2]) or '0'
if redis.call('GET', KEYS[1]) == term .. ' ' .. ARGV[1] then redis.call('UNLINK', KEYS[1]) end
redis.call('UNLINK', KEYS[3] .. ':' .. ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1

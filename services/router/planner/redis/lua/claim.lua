-- Note a move, if the router still leads in its term and the last move is long enough ago.
-- KEYS leader, moved
-- ARGV name, term, cooldown ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('GET', KEYS[1]) ~= ARGV[2] .. ' ' .. ARGV[1] then return 0 end
local moved = tonumber(redis.call('GET', KEYS[2]) or -1)
if moved >= 0 and now - moved < tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[2], now)
return 1

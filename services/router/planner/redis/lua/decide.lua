-- Put a decision up, if the router still leads in its term.
-- KEYS leader, decision
-- ARGV name, term, decision, time to keep it [ms]
if redis.call('GET', KEYS[1]) ~= ARGV[2] .. ' ' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return 1

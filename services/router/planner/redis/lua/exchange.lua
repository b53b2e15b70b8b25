-- Put a report up; take or renew the lead.
-- KEYS leader, term, routers, moved, decision
-- ARGV name, report, lease ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local leader = redis.call('GET', KEYS[1])
local term = tonumber(redis.call('GET', KEYS[2]) or 0)
local leads = leader == term .. ' ' .. ARGV[1]
if not leader then
  term = redis.call('INCR', KEYS[2])
  leads = true
end
if leads then redis.call('SET', KEYS[1], term .. ' ' .. ARGV[1], 'PX', ARGV[3]) end
-- A report is as old as its router's last exchange: one of a lost router fades with its lease.
redis.call('SET', KEYS[3] .. ':' .. ARGV[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[3], now, ARGV[1])
local reports = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  local report = redis.call('GET', KEYS[3] .. ':' .. name)
  if report then reports[#reports + 1] = report else redis.call('ZREM', KEYS[3], name) end
end
local moved = tonumber(redis.call('GET', KEYS[4]) or -1)
local ago = moved < 0 and -1 or math.max(0, now - moved)
return {leads and 1 or 0, term, ago, redis.call('GET', KEYS[5]) or '', reports}

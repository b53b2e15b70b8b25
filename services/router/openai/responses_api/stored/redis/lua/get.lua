-- Return an entry and count it as used.
-- ARGV 3 member
remove_old()
if not redis.call('ZSCORE', P .. 'ends', ARGV[3]) then return {} end
local found = redis.call('HMGET', P .. 'entry:' .. ARGV[3], 'background', 'status', 'items', 'response')
if not found[1] then
  remove(ARGV[3])
  return {}
end
touch(ARGV[3])
return found

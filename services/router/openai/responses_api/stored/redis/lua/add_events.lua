-- Keep events of an entry. The id of an event in the stream is its number plus one: 0 is no id.
-- ARGV 3 member, max_entries, max_bytes, max_event_bytes, then number, is_last and data of each
local member = ARGV[3]
local key, events = P .. 'entry:' .. member, P .. 'events:' .. member
remove_old()
if not redis.call('ZSCORE', P .. 'ends', member) then return end
local newest = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
local last = newest and tonumber(string.match(newest[1], '^%d+')) or 0
local bytes = 0
for at = 7, #ARGV, 3 do
  local id = tonumber(ARGV[at]) + 1
  if id > last then
    redis.call('XADD', events, id .. '-0', 'l', ARGV[at + 1], 'd', ARGV[at + 2])
    bytes = bytes + #ARGV[at + 2]
  end
end
local held = redis.call('HINCRBY', key, 'event_bytes', bytes)
while held > tonumber(ARGV[6]) and redis.call('XLEN', events) > 1 do
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', events, first[1])
  held = redis.call('HINCRBY', key, 'event_bytes', -#first[2][4])
  bytes = bytes - #first[2][4]
end
grow(member, bytes)
local left = redis.call('PTTL', key)
redis.call('PEXPIRE', key, left > 0 and left or age)
redis.call('PEXPIRE', events, left > 0 and left or age)
make_room(tonumber(ARGV[4]), tonumber(ARGV[5]))

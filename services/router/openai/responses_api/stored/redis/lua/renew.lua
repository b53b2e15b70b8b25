-- Note that runs are being made. Returns those that are to end.
-- ARGV 3… members
local ending = {}
for at = 3, #ARGV do
  local key = P .. 'run:' .. ARGV[at]
  redis.call('HSET', key, 'beat', now)
  redis.call('HDEL', key, 'missed')
  redis.call('PEXPIRE', key, age)
  if redis.call('HEXISTS', key, 'stop') == 1 or redis.call('EXISTS', P .. 'gone:' .. ARGV[at]) == 1 then
    ending[#ending + 1] = ARGV[at]
  end
end
return ending

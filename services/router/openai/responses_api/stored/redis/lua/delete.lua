-- Remove an entry; one that has not ended is not kept again for a while. Returns whether there was one.
-- ARGV 3 member, gone_ms
remove_old()
if redis.call('HGET', P .. 'entry:' .. ARGV[3], 'open') == '1' then
  redis.call('SET', P .. 'gone:' .. ARGV[3], '', 'PX', ARGV[4])
end
return remove(ARGV[3])

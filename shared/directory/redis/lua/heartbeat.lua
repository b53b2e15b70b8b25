-- Renew the lease and its blocks together.
-- KEYS lease, blocks
-- ARGV incarnation, load, sequence that the worker knows to have arrived
local known = redis.call('HMGET', KEYS[1], 'incarnation', 'refused', 'lease_ms', 'sequence')
if known[1] ~= ARGV[1] then return {'unknown'} end
if known[2] then return {'refused', known[2]} end
-- A Redis that came back with an older state of its own.
if tonumber(known[4]) < tonumber(ARGV[3]) then return {'unknown'} end
redis.call('HSET', KEYS[1], 'load', ARGV[2])
redis.call('PEXPIRE', KEYS[1], known[3])
redis.call('PEXPIRE', KEYS[2], known[3])
return {'done'}

-- How many leading blocks of a prefix one incarnation holds, in any tier.
-- KEYS blocks
-- ARGV 8 bytes per block
local blocks = ARGV[1]
for at = 1, #blocks, 8 do
  local key = string.sub(blocks, at, at + 7)
  local found = redis.pcall('SMISMEMBER', KEYS[1], '0' .. key, '1' .. key, '2' .. key)
  if found.err or found[1] + found[2] + found[3] == 0 then return (at - 1) / 8 end
end
return #blocks / 8

-- migrate: what is fixed when a store is created, kept beside its partitions.
-- keys[1]: the store's own hash. argument: {schema, partitions, layout}; answer: {schema, partitions, layout} that stand.

local function migrate(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local found = redis.call('HMGET', keys[1], 'schema', 'partitions', 'layout')
  if found[1] then return found end
  redis.call('HSET', keys[1], 'schema', asked[1], 'partitions', asked[2], 'layout', asked[3])
  return { tostring(asked[1]), tostring(asked[2]), asked[3] }
end

redis.register_function(NAME .. 'migrate', migrate)

-- migrate: what is fixed when a store is created, kept beside its partitions.
-- keys[1]: the store's own hash. argument: {schema, partitions, layout}; answer: {schema, partitions, layout} that stand.

local function migrate(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local found = redis.call('HMGET', keys[1], 'schema', 'partitions', 'layout')
  if found[1] then return found end
  redis.call('HSET', keys[1], 'schema', asked[1], 'partitions', asked[2], 'layout', asked[3])
  return { tostring(asked[1]), tostring(asked[2]), asked[3] }
end

-- keys[1] of these is a partition's clock.
-- heads: answers {the partition's head or false, 1 if something was written to it}

local function heads(keys)
  local found = redis.call('MGET', keys[1], head_of(keys))
  return { found[2], found[1] and 1 or 0 }
end

-- found: argument: the head of a partition that has none.

local function found(keys, args)
  redis.call('SET', head_of(keys), args[1], 'NX')
  return 1
end

redis.register_function(NAME .. 'migrate', migrate)
redis.register_function { function_name = NAME .. 'heads', callback = heads, flags = { 'no-writes' } }
-- On a full server too: it takes next to no room, and what makes room waits for it.
redis.register_function { function_name = NAME .. 'found', callback = found, flags = { 'allow-oom' } }

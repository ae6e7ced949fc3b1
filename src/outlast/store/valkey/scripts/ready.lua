-- ready: what waits for a worker in each lane of this partition, and how many executions the partition has.
-- answer: {executions, {namespace, lane, how many, ready since} ...}

local function ready(keys)
  local call, lanes, order = begin(keys, 0), {}, {}
  for _, group in ipairs(redis.call('ZRANGE', call.tag .. 'groups:ready', 0, -1)) do
    local namespace, from = first_text(group, 1)
    local lane, stop = first_text(group, from)
    local name, set = string.sub(group, 1, stop - 1), call.tag .. 'ready:' .. group
    local found = lanes[name]
    if not found then
      found = { namespace, lane, 0, EXACT }
      lanes[name] = found
      order[#order + 1] = found
    end
    found[3] = found[3] + redis.call('ZCARD', set)
    -- The first of each priority is its oldest; the first of all is near enough to the oldest of all.
    local first = redis.call('ZRANGE', set, 0, 0)[1]
    found[4] = math.min(found[4], tonumber(string.sub(first, ORDER - CREATED + 1, ORDER)))
  end
  return { redis.call('ZCARD', call.tag .. 'keys:execution:'), order }
end

redis.register_function { function_name = NAME .. 'ready', callback = ready, flags = { 'no-writes' } }

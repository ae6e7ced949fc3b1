-- health: what waits for a worker in each lane of this partition, and how many executions the partition has.
-- answer: {executions, {namespace, lane, how many, ready since} ...}

local function health(keys)
  local call, lanes, order = begin(keys, 0), {}, {}
  for _, group in ipairs(command('ZRANGE', call.tag .. 'groups:ready', 0, -1)) do
    local namespace, from = first_text(group, 1)
    local lane, stop = first_text(group, from)
    local name, set = sub(group, 1, stop - 1), call.tag .. 'ready:' .. group
    local found = lanes[name]
    if not found then
      found = { namespace, lane, 0, EXACT }
      lanes[name] = found
      order[#order + 1] = found
    end
    found[3] = found[3] + command('ZCARD', set)
    -- The oldest of the first thousand: behind them are only lower priorities.
    for _, member in ipairs(command('ZRANGE', set, 0, 999)) do
      found[4] = math.min(found[4], tonumber(sub(member, ORDER - CREATED + 1, ORDER)))
    end
  end
  return { command('ZCARD', call.tag .. 'owners:'), order }
end

offer('health', health, 'no-writes')

-- find: executions of this partition, newest first, by an index and by conditions on each.
-- argument: {namespace, groups of indexes of which each would do, lowest member, highest member (bounds by lex), limit, equal {position, value, ...},
--            tags {tag, value, ...}, id prefix, 1 to count only}
-- answer: {records or how many, the member to go on behind, or false at the end}
--
-- A call looks at LOOKS executions and no more; the caller goes on where it stopped.

-- Members of a flow that is still being staged are not there yet.
local function staged(call, values)
  if not values[EXECUTION.flow] then return false end
  local flow = record(call, FLOW.kind, '', text(values[EXECUTION.namespace]) .. text(values[EXECUTION.flow])).values
  return flow and flow[FLOW.staged_at]
end

local function fits(call, asked, execution)
  local values = execution.values
  if not values or staged(call, values) then return false end
  local equal, tags, prefix = asked[6], asked[7], asked[8]
  for i = 1, #equal, 2 do
    if values[equal[i]] ~= equal[i + 1] then return false end
  end
  if sub(values[EXECUTION.id], 1, #prefix) ~= prefix then return false end
  for i = 1, #tags, 2 do
    if not tagged(call, execution.of.owner, tags[i], tags[i + 1]) then return false end
  end
  return true
end

-- The index that is shortest: they have the same order.
local function shortest(call, groups)
  local set, size
  for _, group in ipairs(groups) do
    local card = #groups > 1 and command('ZCARD', call.tag .. group) or 0
    if not size or card < size then set, size = call.tag .. group, card end
  end
  return set
end

local function find(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, 0)
  local set, only_count = shortest(call, asked[2]), asked[9] == 1
  local all_listed = command('EXISTS', call.tag .. 'staging:' .. text(asked[1])) == 0
  if only_count and all_listed and #asked[6] == 0 and #asked[7] == 0 and asked[8] == '' then
    return { command('ZLEXCOUNT', set, asked[3], asked[4]), false }
  end
  local found, count = {}, 0
  local page = command('ZREVRANGEBYLEX', set, asked[4], asked[3], 'LIMIT', 0, LOOKS)
  for _, member in ipairs(page) do
    local execution = execution_of(call, text(asked[1]) .. sub(member, CREATED + 1))
    if fits(call, asked, execution) then
      count = count + 1
      if not only_count then
        found[count] = told(execution)
        if count == asked[5] then return { found, member } end
      end
    end
  end
  return { only_count and count or found, #page == LOOKS and page[#page] }
end

-- Those of a tag that few have: all of them, in any order.
-- argument: {namespace, tag index's group, the most that are few, false, false, equal, tags, id prefix}
-- answer: the records, or false if there are more.
local function find_tagged(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, 0)
  local set = call.tag .. asked[2]
  if command('ZCARD', set) > asked[3] then return false end
  local found = {}
  for _, id in ipairs(command('ZRANGE', set, 0, -1)) do
    local execution = execution_of(call, text(asked[1]) .. id)
    if fits(call, asked, execution) then found[#found + 1] = told(execution) end
  end
  return found
end

offer('find', find, 'no-writes')
offer('find_tagged', find_tagged, 'no-writes')

-- purge: ended executions of this partition with all that belongs to them. An open one is in neither index, and
-- a member of a flow, which goes with its flow, not in that of ends.
-- argument: {now or false, index, ended before or false (then: whose time has come), limit, filter, place to go on
--   behind or false}
-- answer: {how many are gone, the place to go on behind, or false if that is all for now}. It stops after the execution
--   that passes PURGE_RECORDS records.

local PURGE_RECORDS = 20000

local function purge_one(call, owner)
  local known = owner_of(call, owner)
  local fields = command('HKEYS', known.hash)
  for _, field in ipairs(fields) do
    local kind = byte(field) - 64
    if INDEXES[kind] then
      local found = record(call, kind, owner, sub(field, 2))
      reindex(call, found, found.values, false)
    end
  end
  command('UNLINK', known.hash, list_of(call, owner), call.tag .. 'frames:' .. owner, call.tag .. 'appends:' .. owner)
  leave(call, call.tag .. 'owners:', owner)
  return #fields
end

local function purge(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, asked[1])
  local limit, filter = asked[4], asked[5]
  local before = asked[3] and '(' .. format('%.0f', asked[3]) or call.now
  local page, place = page_of_times(call.tag .. asked[2] .. ':', before, asked[6])
  local chosen = {}
  for _, rest in ipairs(page) do
    local values = execution_of(call, rest).values
    if passes(call, filter, values[EXECUTION.namespace], values[EXECUTION.id]) then
      chosen[#chosen + 1] = rest
      if #chosen == limit then break end
    end
  end
  local purged, records = 0, 0
  for _, rest in ipairs(chosen) do
    records = records + purge_one(call, rest)
    purged = purged + 1
    if records >= PURGE_RECORDS then break end
  end
  flush(call)
  return { purged, purged == #chosen and purged < limit and place }
end

-- On a full server too: it makes room.
offer('purge', purge, 'allow-oom')

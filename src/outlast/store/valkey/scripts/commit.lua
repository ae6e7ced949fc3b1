-- commit: a batch of guarded changes of one partition, in order, each all or nothing with a verdict of its own.
--
-- arguments: {now or false, keys, changes}, then bytes. keys: kind, owner, rest of each record named, one after the other.
-- A change: {id, anchored execution or 0, guards, writes, rings}. Guards and writes name records by their number in keys.
--   guard: {1, key, position, value, ...} matches · {2, key} absent · {3|4|5, key, position} reached, ahead, lapsed
--   write: {1, key, values} insert · {2, key, position, value, ...} patch · {3, key, values} put · {4, key} delete
--          {5, key, position, amount} add
-- answer: {now, verdicts}: {1, inbox} applied · {2, inbox} applied before
--          {0, inbox, number of the guard, or minus that of the insert, the record that stands}

local function named(call, batch, number)
  local found = call.named[number]
  if not found then
    local at = 3 * number
    found = record(call, batch[2][at - 2], batch[2][at - 1], batch[2][at])
    call.named[number] = found
  end
  return found
end

local function holds(call, guard, values)
  local what = guard[1]
  if what == 1 then
    if not values then return false end
    for i = 3, #guard, 2 do
      if values[guard[i]] ~= given(call, guard[i + 1]) then return false end
    end
    return true
  end
  if what == 2 then return not values end
  local time = values and tonumber(values[guard[3]])
  if what == 3 then return time and time <= call.now end
  if what == 4 then return time and time > call.now end
  return not time or time <= call.now
end

-- The number of the first guard that does not hold, or minus that of the first insert whose key is taken.
local function refusal(call, batch, change)
  for i, guard in ipairs(change[3]) do
    if not holds(call, guard, named(call, batch, guard[2]).values) then return i, guard[2] end
  end
  for i, write in ipairs(change[4]) do
    if write[1] == 1 and named(call, batch, write[2]).values then return -i, write[2] end
  end
  return nil
end

-- Whether a record that the change would leave bears its name: it was applied before, and the reply was lost.
local function own(call, batch, change)
  for _, write in ipairs(change[4]) do
    local found = named(call, batch, write[2])
    local position = KINDS[found.kind].change_id
    if position and found.values and found.values[position] == change[1] then
      if write[1] == 1 then return true end
      if write[1] == 2 then
        for i = 3, #write, 2 do
          if write[i] == position then return true end
        end
      end
    end
  end
  return false
end

local function apply(call, batch, write)
  local what, found = write[1], named(call, batch, write[2])
  if what == 1 or what == 3 then
    replace(call, found, settled(call, found.kind, write[3]))
  elseif what == 4 then
    if found.values then replace(call, found, false) end
  elseif found.values then
    local values = editable(call, found)
    if what == 2 then
      for i = 3, #write, 2 do
        values[write[i]] = given(call, write[i + 1])
      end
    elseif values[write[3]] then
      local sum = tonumber(values[write[3]]) + write[4]
      if math.abs(sum) >= EXACT then error('OUTLAST a counter may not pass 2^53') end
      values[write[3]] = sum
    end
  end
end

local function verdict(call, batch, change)
  local anchor = change[2] > 0 and named(call, batch, change[2])
  local function inbox() return anchor and anchor.values and anchor.values[INBOX] end
  local refused, key = refusal(call, batch, change)
  if refused then
    if own(call, batch, change) then return { 2, inbox() } end
    local stands = named(call, batch, key).values -- a copy: later changes of the batch may edit it
    return { 0, inbox(), refused, stands and copied(stands) }
  end
  for _, write in ipairs(change[4]) do apply(call, batch, write) end
  for _, ring in ipairs(change[5]) do call.rings[ring] = true end
  return { 1, inbox() }
end

-- A hint: what was written stands, also if this user may not ring (doctor says so).
local function ring(call)
  local channels = {}
  for channel in pairs(call.rings) do channels[#channels + 1] = channel end
  if #channels > 0 then redis.pcall('SPUBLISH', call.tag .. 'bell', table.concat(channels, '\n')) end
end

local function commit(keys, args)
  local batch = cmsgpack.unpack(args[1])
  local call = begin(keys, batch[1], args)
  call.rings, call.named = {}, {}
  local verdicts = {}
  for i, change in ipairs(batch[3]) do verdicts[i] = verdict(call, batch, change) end
  flush(call)
  ring(call)
  return { call.now, verdicts }
end

offer('commit', commit)
-- The same for changes that take no room: a full server makes them too.
offer('commit_freeing', commit, 'allow-oom')

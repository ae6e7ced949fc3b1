-- commit: a batch of guarded changes of one partition, in order, each all or nothing with a verdict of its own.
--
-- arguments: {now or false, owners, changes}, then bytes. owners: {owner, fields of records ...}, all that is named.
-- A change: {id, anchored execution or 0, guards, writes, rings}. Guards and writes name records by their number there.
--   guard: {1, key, position, value, ...} matches · {2, key} absent · {3|4|5, key, position} reached, ahead, lapsed
--   write: {1, key, argument, times} insert · {2, key, position, value, ...} patch · {3, key, argument, times} put
--          {4, key} delete · {5, key, position, amount} add
--   A new record is an argument of its own, packed but for its times.
-- answer: {now, verdicts}: inbox, or {1, inbox}: applied · {2, inbox} applied before
--          {0, inbox, number of the guard, or minus that of the insert, the record that stands}

-- Everything that is named, read at once: by number.
local function read(call, owners)
  local named = {}
  for _, group in ipairs(owners) do
    local known, got = owner_of(call, group[1]), nil
    for i = 2, #group do
      if (i - 2) % TOGETHER == 0 then
        got = redis.call('HMGET', known.hash, unpack(group, i, math.min(i + TOGETHER - 1, #group)))
      end
      named[#named + 1] = keep(known, group[i], got[(i - 2) % TOGETHER + 1])
    end
  end
  return named
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
local function refusal(call, change)
  for i, guard in ipairs(change[3]) do
    if not holds(call, guard, values_of(call.named[guard[2]])) then return i, guard[2] end
  end
  for i, write in ipairs(change[4]) do
    if write[1] == 1 and call.named[write[2]].packed ~= false then return -i, write[2] end
  end
  return nil
end

-- Whether a record that the change would leave bears its name: it was applied before, and the reply was lost.
local function own(call, change)
  for _, write in ipairs(change[4]) do
    local found = call.named[write[2]]
    local position = KINDS[found.kind].change_id
    local values = position and values_of(found)
    if values and values[position] == change[1] then
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

local function apply(call, write)
  local what, found = write[1], call.named[write[2]]
  if what == 1 or what == 3 then
    put(call, found, call.args[write[3]], write[4])
  elseif found.packed == false then
    return
  elseif what == 4 then
    replace(call, found, false)
  else
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

local function inbox(call, change)
  local anchor = change[2] > 0 and values_of(call.named[change[2]])
  return anchor and anchor[INBOX]
end

local function verdict(call, change)
  local refused, key = refusal(call, change)
  if refused then
    if own(call, change) then return { 2, inbox(call, change) } end
    local stands = values_of(call.named[key]) -- a copy: later changes of the batch may edit it
    return { 0, inbox(call, change), refused, stands and copied(stands) }
  end
  for _, write in ipairs(change[4]) do apply(call, write) end
  for _, ring in ipairs(change[5]) do call.rings[ring] = true end
  return inbox(call, change) or { 1, false }
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
  call.rings, call.named = {}, read(call, batch[2])
  local verdicts = {}
  for i, change in ipairs(batch[3]) do verdicts[i] = verdict(call, change) end
  flush(call)
  ring(call)
  return { call.now, verdicts }
end

offer('commit', commit)
-- The same for changes that take no room: a full server makes them too.
offer('commit_freeing', commit, 'allow-oom')

-- commit: a batch of guarded changes of each partition, in order, each all or nothing with a verdict of its own.
--
-- arguments: the batch of each partition, in the order of the keys, then bytes. All of them are decided before anything is
-- written. A batch is one sequence of values, for a table takes longer to unpack than to read:
--   now or false · how many owners, then of each: itself, how many records of it are named, their fields
--   · how many changes, then of each: how many values it has, its id, its anchored execution or 0,
--   how many guards and these, how many writes and these, how many rings and these
--   Most changes insert a record of an execution that is as it was, and do nothing else. They name nothing by number, and
--   are read when it is their turn: 0 in the place of that count, the execution, the record's field, the change's id,
--   argument, times, how many, {position, value} ... that match
-- Guards and writes name records by their number among all fields; the first owner is the partition itself, whose
-- records have numbers below zero: they are named between those of executions.
--   guard: 1, key, how many, {position, value} ... matches · 2, key: absent · 3|4|5, key, position: reached, ahead, lapsed
--   write: 1, key, argument, times: insert · 2, key, how many, {position, value} ...: patch · 3, key, argument, times: put
--          4, key: delete · 5, key, position, amount: add
--   A new record is an argument of its own, packed but for its times.
-- answer: of each partition {now, verdicts}: inbox, or {1, inbox}: applied · {2, inbox} applied before
--          {0, inbox, number of the guard, or minus that of the insert, the record that stands}

-- Everything that has a number, read at once: by that. The second result is where the changes begin.
local function read(call, batch)
  local named, at = {}, 3
  for _ = 1, batch[2] do
    local known, last = owner_of(call, batch[at]), at + 1 + batch[at + 1]
    for from = at + 2, last, TOGETHER do
      local to = math.min(from + TOGETHER - 1, last)
      local got = command('HMGET', known.hash, unpack(batch, from, to))
      for i = from, to do
        local number = at == 3 and 4 - i or #named + 1
        named[number] = keep(known, batch[i], got[i - from + 1])
      end
    end
    at = last + 1
  end
  return named, at
end

local function behind_guard(batch, i)
  local what = batch[i]
  if what == 1 then return i + 3 + 2 * batch[i + 2] end
  return what == 2 and i + 2 or i + 3
end

local function behind_write(batch, i)
  local what = batch[i]
  if what == 2 then return i + 3 + 2 * batch[i + 2] end
  return what == 4 and i + 2 or i + 4
end

-- Whether there are values, and these are among them: how many, {position, value} ...
local function matches(call, values, batch, i)
  if not values then return false end
  for at = i + 1, i - 1 + 2 * batch[i], 2 do
    local position, value = batch[at], batch[at + 1]
    if position < 0 or position > BESIDE then position, value = given(call, position, value) end
    if values[position] ~= value then return false end
  end
  return true
end

local function holds(call, batch, i)
  local what, values = batch[i], values_of(call.named[batch[i + 1]])
  if what == 1 then return matches(call, values, batch, i + 2) end
  if what == 2 then return not values end
  local time = values and tonumber(values[batch[i + 2]])
  if what == 3 then return time and time <= call.now end
  if what == 4 then return time and time > call.now end
  return not time or time <= call.now
end

-- Where the writes of a change begin: how many there are.
local function writes_of(batch, change)
  local i = change + 4
  for _ = 1, batch[change + 3] do i = behind_guard(batch, i) end
  return i
end

-- The number of the first guard that does not hold, or minus that of the first insert whose key is taken; and the key.
-- If there is none, nil, and where the writes begin.
local function refusal(call, batch, change)
  local i = change + 4
  for number = 1, batch[change + 3] do
    if not holds(call, batch, i) then return number, batch[i + 1] end
    i = behind_guard(batch, i)
  end
  local writes = i
  i = i + 1
  for number = 1, batch[writes] do
    if batch[i] == 1 and call.named[batch[i + 1]].packed ~= false then return -number, batch[i + 1] end
    i = behind_write(batch, i)
  end
  return nil, writes
end

-- Whether a record bears the name of a change: it was applied before, and the reply was lost.
local function made_by(found, id)
  local position, values = KINDS[found.kind].change_id, values_of(found)
  return position and values and values[position] == id
end

-- Whether a record that the change would leave bears its name.
local function own(call, batch, change)
  local i, id = writes_of(batch, change), batch[change + 1]
  local count = batch[i]
  i = i + 1
  for _ = 1, count do
    local what, found = batch[i], call.named[batch[i + 1]]
    if made_by(found, id) then
      if what == 1 then return true end
      if what == 2 then
        local position = KINDS[found.kind].change_id
        for at = i + 3, i + 1 + 2 * batch[i + 2], 2 do
          if batch[at] == position then return true end
        end
      end
    end
    i = behind_write(batch, i)
  end
  return false
end

local function apply(call, batch, i)
  local what, found = batch[i], call.named[batch[i + 1]]
  if what == 1 or what == 3 then
    put(call, found, call.args[batch[i + 2]], batch[i + 3])
  elseif found.packed == false then
    return
  elseif what == 4 then
    replace(call, found, false)
  else
    local values, position = editable(call, found), batch[i + 2]
    if what == 2 then
      for at = i + 3, i + 1 + 2 * position, 2 do
        local where, value = batch[at], batch[at + 1]
        if where < 0 or where > BESIDE then where, value = given(call, where, value) end
        values[where] = value
      end
    elseif values[position] then
      local sum = tonumber(values[position]) + batch[i + 3]
      if math.abs(sum) >= EXACT then error('OUTLAST a counter may not pass 2^53') end
      values[position] = sum
    end
  end
end

local function inbox(call, batch, change)
  local anchor = batch[change + 2] > 0 and values_of(call.named[batch[change + 2]])
  return anchor and anchor[INBOX]
end

local function verdict(call, batch, change)
  local refused, place = refusal(call, batch, change)
  if refused then
    if own(call, batch, change) then return { 2, inbox(call, batch, change) } end
    local stands = values_of(call.named[place]) -- a copy: later changes of the batch may edit it
    return { 0, inbox(call, batch, change), refused, stands and copied(stands) }
  end
  local i = place + 1
  for _ = 1, batch[place] do
    apply(call, batch, i)
    i = behind_write(batch, i)
  end
  for at = i + 1, i + batch[i] do
    call.rings[batch[at]] = true
    call.rang = true
  end
  return inbox(call, batch, change) or { 1, false }
end

-- The execution of an entry and its record, read unless they are known.
local function entry_of(call, owner, field)
  local known, itself = owner_of(call, owner), LETTERS[EXECUTION.kind]
  local execution, found = known.found[itself], known.found[field]
  if not execution and not found then
    local got = command('HMGET', known.hash, itself, field)
    return keep(known, itself, got[1]), keep(known, field, got[2])
  end
  execution = execution or keep(known, itself, command('HGET', known.hash, itself))
  return execution, found or keep(known, field, command('HGET', known.hash, field))
end

-- As `verdict`, of an entry; and where the next change begins.
local function entered(call, batch, i)
  local behind = i + 7 + 2 * batch[i + 6]
  local execution, found = entry_of(call, batch[i + 1], batch[i + 2])
  local values = values_of(execution)
  local come, as_it_was = values and values[INBOX], matches(call, values, batch, i + 6)
  if as_it_was and found.packed == false then
    put(call, found, call.args[batch[i + 4]], batch[i + 5])
    return come, behind
  end
  if made_by(found, batch[i + 3]) then return { 2, come }, behind end
  local stands = values_of(as_it_was and found or execution)
  return { 0, come, as_it_was and -1 or 1, stands and copied(stands) }, behind
end

-- A hint: what was written stands, also if this user may not ring (doctor says so). Partitions that ring together ring one
-- bell, and say that it is about no partition in particular.
local function ring(calls, rings)
  local bell, channels = nil, {}
  for place = 1, #calls do
    if calls[place].rang then
      if bell then channels[1] = '' end
      bell = bell or calls[place].tag .. 'bell'
    end
  end
  if not bell then return end
  for channel in pairs(rings) do channels[#channels + 1] = channel end
  redis.pcall('SPUBLISH', bell, table.concat(channels, '\n'))
end

-- A partition's verdicts on its changes. Nothing is written yet.
local function decided(call, batch)
  local verdicts, change = {}, nil
  call.named, change = read(call, batch)
  local count = batch[change]
  change = change + 1
  for number = 1, count do
    if batch[change] == 0 then
      verdicts[number], change = entered(call, batch, change)
    else
      verdicts[number] = verdict(call, batch, change)
      change = change + batch[change]
    end
  end
  return verdicts
end

local function commit(keys, args)
  local calls, answers, rings = {}, {}, {}
  for place = 1, #keys do
    local batch = { unpacked(args[place]) }
    if type(batch[1]) == 'table' then batch = batch[1] end -- of many values, which come in a table after all
    local call = begin(keys, batch[1], args, place)
    call.rings = rings
    calls[place] = call
    answers[place] = { call.now, decided(call, batch) }
  end
  flush_all(calls)
  ring(calls, rings)
  return answers
end

offer('commit', commit)
-- The same for changes that take no room: a full server makes them too.
offer('commit_freeing', commit, 'allow-oom')

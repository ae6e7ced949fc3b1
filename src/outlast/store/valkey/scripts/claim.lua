-- claim: take ready executions of one partition, writing exactly what `decide(view, Claim)` gives.
--
-- argument: {now or false, partition as in keys, namespace, lanes, serves {"workflow|version": true}, capabilities,
--            worker, claim id, limit, lease ttl, suspects or -1, 1 if this claim was here before and goes on, leap}
-- claim answers {now, 1 if it took them before, {execution, input, when it first began, journal, events} ..., how many
-- are left, the first one's place in the order of claims}; peek {now, 1 if this claim took some before, how many are there,
-- the first one's place}. A peek changes nothing. How many there are is said without a look into flows.

local CHUNK, CHUNK_MAX = 64, 256
local LOOKS_MAX = 10000
local ROUTES_PAGE = 1000
-- So many executions of one claim come with their journals, if these have no more entries than that.
local FEW, SHORT = 16, 32

local function request(keys, args)
  local a = unpacked(args[1])
  local asked = { home = a[2], namespace = a[3], lanes = a[4], serves = a[5], offers = a[6], worker = a[7],
                  claim_id = a[8], limit = a[9], ttl = a[10], suspects = a[11], goes_on = a[12] == 1, leap = a[13] }
  if asked.suspects < 0 then asked.suspects = asked.limit end
  return begin(keys, a[1]), asked
end

local function served(call, asked, route)
  local workflow, version, requires, mark = string.match(route, '^([^|]*)|([^|]*)|([^|]*)|?(.*)$')
  if not workflow or not asked.serves[workflow .. '|' .. version] then return nil end
  for word in string.gmatch(requires, '[^,]+') do
    if not asked.offers[word] then return nil end
  end
  local suspect = mark == 'suspect'
  if suspect and asked.suspects == 0 then return nil end
  return { suspect = suspect }
end

local function open_lane(call, asked, lane)
  local values = record(call, LANE.kind, '', asked.home .. text(asked.namespace) .. text(lane)).values
  return not (values and values[LANE.paused] == 1)
end

-- The routes with ready work that the worker serves and whose gates are open.
local function routes(call, asked)
  local found = {}
  for _, lane in ipairs(asked.lanes) do
    if open_lane(call, asked, lane) then
      local prefix = text(asked.namespace) .. text(lane)
      local low, high = under(prefix)
      local page
      repeat
        page = command('ZRANGEBYLEX', call.tag .. 'groups:ready', low, high, 'LIMIT', 0, ROUTES_PAGE)
        for _, group in ipairs(page) do
          local route = served(call, asked, (first_text(group, #prefix + 1)))
          if route then
            route.set, route.size = call.tag .. 'ready:' .. group, math.min(asked.limit, CHUNK_MAX)
            found[#found + 1] = route
          end
        end
        if #page > 0 then low = '(' .. page[#page] end
      until #page < ROUTES_PAGE
    end
  end
  return found
end

-- Digits compare as numbers whatever the server's language; ids byte by byte.
local function before(a, b)
  local x, y = sub(a, 1, ORDER), sub(b, 1, ORDER)
  if x ~= y then return x < y end
  for i = ORDER + 1, math.min(#a, #b) do
    local c, d = byte(a, i), byte(b, i)
    if c ~= d then return c < d end
  end
  return #a < #b
end

-- The first page of a route is as long as the claim may need it; those behind it are read if gates are shut.
local function head(route)
  local page = route.page
  if not page or (route.at > #page and #page == route.size) then
    local from = page and route.from + route.size or 0
    route.size = page and CHUNK or route.size
    page = command('ZRANGE', route.set, from, from + route.size - 1)
    route.page, route.from, route.at = page, from, 1
  end
  return page[route.at]
end

-- The route whose head is first of all.
local function best(found)
  local chosen, first
  for _, route in ipairs(found) do
    local member = head(route)
    if member and (not first or before(member, first)) then chosen, first = route, member end
  end
  return chosen, first
end

local function gates_open(call, asked, flow, cancelled)
  -- What is cancelled is only left to undo what it did: its flow may be shut.
  if flow and not cancelled then
    local values = record(call, FLOW.kind, '', text(asked.namespace) .. text(flow)).values
    if values and values[FLOW.state] ~= 'open' then return false end
  end
  return true
end

-- ---- how it stands -------------------------------------------------------------------------------------------------
--
-- An execution's record is who it is, how it stands (its epoch among that), the change that wrote it, and its times. Most
-- that wait stand alike but for the epoch, byte by byte, and so they will once they are claimed. So that is taken apart,
-- and put together, once for all of them, and their records are not taken apart at all.

local E = EXECUTION
local WHO, STANDS, TIMES = E.status - 1, E.change_id - 1, KINDS[E.kind].size - E.change_id
local NOTHING = {}
for i = 1, KINDS[E.kind].size do NOTHING[i] = false end

-- A new attempt of one that stands so, packed: what is before its epoch, but for whose it is, and what is behind.
local function new_attempt(call, asked, e)
  local a, values = ATTEMPT, copied(NOTHING)
  values[a.generation], values[a.number], values[a.started_at] = e[E.generation], e[E.attempt], call.now
  values[a.worker], values[a.change_id] = asked.worker, asked.claim_id
  return pack(unpack(values, a.execution + 1, a.epoch - 1)), pack(unpack(values, a.epoch + 1, KINDS[a.kind].size))
end

-- All that stand as these values, and will as `begins`, the epoch and `goes_on` then.
local function new_standing(call, asked, left, right, was)
  local e, timeout = copied(was), was[E.timeout_ms]
  local made = { left = left, right = right, was = was, times = {}, open = was[E.attempt_open] == 1 }
  made.attempt = LETTERS[ATTEMPT.kind] .. whole(e[E.generation]) .. whole(e[E.attempt])
  made.attempt_begins, made.attempt_goes_on = new_attempt(call, asked, e)
  made.cancelled = tonumber(e[E.cancel_requested]) == 1
  made.input = LETTERS[PAYLOAD.kind] .. whole(e[E.journal_generation]) .. text('input')
  made.left_set = call.tag .. 'status:' .. text(asked.namespace) .. text(e[E.status])
  e[E.status], e[E.reason], e[E.attempt_open] = 'active', false, 1
  e[E.worker], e[E.claim_id], e[E.change_id] = asked.worker, asked.claim_id, asked.claim_id
  made.deadline_at = timeout and call.now + math.max(0, timeout - e[E.ran_ms])
  made.begins, made.goes_on = pack(unpack(e, WHO + 1, E.epoch - 1)), pack(unpack(e, E.epoch + 1, E.change_id))
  return made
end

-- How one stands, whose record goes on so from a place; its epoch, and where its times begin.
local function standing(call, asked, packed, from)
  local last = call.standing
  if last and sub(packed, from, from + #last.left - 1) == last.left then
    local at, epoch = some_unpacked(packed, 1, from + #last.left - 1)
    if sub(packed, at + 1, at + #last.right) == last.right then
      return last, epoch, (some_unpacked(packed, 1, at + #last.right)) + 1
    end
  end
  local first = { some_unpacked(packed, E.epoch - WHO - 1, from - 1) }
  local at, epoch = some_unpacked(packed, 1, first[1])
  local second = { some_unpacked(packed, STANDS - E.epoch, at) }
  local left, right = sub(packed, from, first[1]), sub(packed, at + 1, second[1])
  local found = call.stands[left .. right]
  if not found then
    local was = copied(NOTHING)
    for i = 2, #first do was[WHO + i - 1] = first[i] end
    for i = 2, #second do was[E.epoch + i - 1] = second[i] end
    found = new_standing(call, asked, left, right, was)
    call.stands[left .. right] = found
  end
  call.standing = found
  return found, epoch, (some_unpacked(packed, 1, second[1])) + 1
end

-- The times of those that stand so and have these: packed as they are then, and what indexes ask for.
local function times_of(call, stands, tail)
  local found = stands.times[tail]
  if not found then
    local times = { unpacked(tail) }
    found = { created = digits(times[E.created_at - E.change_id], CREATED) }
    found.had_deadline = times[E.attempt_deadline_at - E.change_id]
    times[E.ready_at - E.change_id], times[E.claimed_at - E.change_id] = false, call.now
    times[E.attempt_deadline_at - E.change_id] = stands.deadline_at
    found.packed = pack(unpack(times, 1, TIMES))
    stands.times[tail] = found
  end
  return found
end

-- ---- taking --------------------------------------------------------------------------------------------------------

-- The indexes that a claim moves an execution in: a test compares them with those that are declared.
local function reindex_claimed(call, asked, one, route, member)
  local stands, times = one.stands, one.times
  leave(call, route.set, member)
  call.went[route.set] = 'ready'
  enter(call, asked.held, 0, asked.claimed .. one.owner)
  call.came[asked.held] = 'held'
  local created = times.created .. sub(member, ORDER + 1)
  leave(call, stands.left_set, created)
  enter(call, asked.active, 0, created)
  if stands.deadline_at then
    enter(call, call.tag .. 'timeout:', stands.deadline_at, one.owner)
  elseif times.had_deadline then
    leave(call, call.tag .. 'timeout:', one.owner)
  end
end

-- One that goes on under its new holder.
local function go_on(call, asked, one)
  local values = editable(call, record(call, ATTEMPT.kind, one.owner, sub(one.stands.attempt, 2)))
  values[ATTEMPT.epoch], values[ATTEMPT.worker] = one.epoch, asked.worker
  values[ATTEMPT.change_id] = asked.claim_id
end

local function take(call, asked, one, packed, behind)
  local stands, epoch = one.stands, pack(one.epoch)
  one.packed = sub(packed, 1, behind) .. stands.begins .. epoch .. stands.goes_on .. one.times.packed
  if stands.open then
    go_on(call, asked, one)
  else
    local whose = sub(packed, 1, (some_unpacked(packed, ATTEMPT.execution, 0)))
    one.attempt = whose .. stands.attempt_begins .. epoch .. stands.attempt_goes_on
  end
end

-- Where the values of who it is end, and which flow it is of.
local function behind_and_flow(behind, ...)
  return behind, (select(E.flow, ...))
end

-- Of one that waits its input is read as well, where most have it.
local FIRST_INPUT = 'a1input\0'

local function choose(call, asked, found)
  local chosen, suspects = {}, asked.suspects
  local space, field = text(asked.namespace), LETTERS[E.kind]
  local first_input = LETTERS[PAYLOAD.kind] .. FIRST_INPUT
  asked.held, asked.claimed = call.tag .. 'held:' .. text(asked.worker), text(asked.claim_id)
  asked.active = call.tag .. 'status:' .. space .. text('active')
  call.stands = {}
  for _ = 1, LOOKS_MAX do
    if #chosen == asked.limit then break end
    local route, member = best(found)
    if not route then break end
    route.at = route.at + 1
    if not route.suspect or suspects > 0 then
      local owner = space .. sub(member, ORDER + 1)
      local hash = call.tag .. 'of:' .. owner
      local got = command('HMGET', hash, field, first_input)
      local packed = got[1]
      local behind, flow = behind_and_flow(some_unpacked(packed, WHO, 0))
      local stands, epoch, rest = standing(call, asked, packed, behind + 1)
      if gates_open(call, asked, flow, stands.cancelled) then
        local one = {
          owner = owner, hash = hash, stands = stands, e = stands.was, epoch = epoch + asked.leap,
          times = times_of(call, stands, sub(packed, rest)), input = stands.input == first_input and got[2],
        }
        take(call, asked, one, packed, behind)
        reindex_claimed(call, asked, one, route, member)
        chosen[#chosen + 1] = one
        if route.suspect then suspects = suspects - 1 end
      end
    end
  end
  return chosen
end

-- A new attempt is one record more; whoever has many has a list of them.
local function write_taken(call, taken)
  local field = LETTERS[E.kind]
  for _, one in ipairs(taken) do
    local attempt = one.stands.attempt
    if not one.attempt then
      command('HSET', one.hash, field, one.packed)
    elseif command('HSET', one.hash, field, one.packed, attempt, one.attempt) == 1
      and command('HLEN', one.hash) > LISTED then
      local known = owner_of(call, one.owner)
      known.found[attempt] = { kind = ATTEMPT.kind, field = attempt, of = known, packed = one.attempt, dirty = true }
      known.added = known.added + 1
    end
  end
end

-- What its new holder would read first: when it first began, and its journal and events, if these
-- are few. False for each that is left to be asked for.
local function past(call, one, few)
  local e, owner = one.e, one.owner
  if e[E.resumed] == 0 and e[E.generation] == 1 then return false, false, false end
  local first = values_of(record(call, ATTEMPT.kind, owner, whole(e[E.journal_generation]) .. whole(1)))
  local began_at = first and first[ATTEMPT.started_at]
  -- All that it has is read for it, so nobody's is who has much.
  if not few or command('HLEN', one.hash) > SHORT + EARLY then return began_at, false, false end
  local journal, events = owned(call, JOURNAL.kind, owner), owned(call, EVENT.kind, owner)
  if #journal > SHORT or #events > EARLY then return began_at, false, false end
  for i, found in ipairs(journal) do journal[i] = told(found) end
  for i, found in ipairs(events) do events[i] = told(found) end
  return began_at, journal, events
end

-- A worker is alive for so long: a session that was promised more keeps it.
local function renew_session(call, home, worker, ttl)
  local found = record(call, SESSION.kind, '', home .. text(worker))
  local expires_at = call.now + ttl
  if found.values then
    if tonumber(found.values[SESSION.expires_at]) >= expires_at then return end
    editable(call, found)[SESSION.expires_at] = expires_at
  else
    local values = {}
    values[SESSION.partition], values[SESSION.worker] = tonumber(sub(home, 2)), worker
    values[SESSION.expires_at], values[SESSION.started_at] = expires_at, call.now
    values[SESSION.offers] = ''
    replace(call, found, values)
  end
end

local function claimed_before(call, asked, limit)
  if asked.goes_on then return {} end
  local low, high = under(text(asked.claim_id))
  return command('ZRANGEBYLEX', call.tag .. 'held:' .. text(asked.worker), low, high, 'LIMIT', 0, limit)
end

local function input_of(call, one)
  local packed = one.input
  if not packed then
    local field = LETTERS[PAYLOAD.kind] .. whole(one.e[E.journal_generation]) .. text('input')
    packed = command('HGET', one.hash, field)
  end
  return (select(PAYLOAD.value, unpacked(packed)))
end

-- How many there are, and the first one's place.
local function counted(found)
  local count = 0
  for _, route in ipairs(found) do
    local size = command('ZCARD', route.set)
    route.page, route.at, route.size = size == 0 and {} or nil, 1, 1
    count = count + size
  end
  local _, first = best(found)
  return count, first or false
end

local function claim(keys, args)
  local call, asked = request(keys, args)
  renew_session(call, asked.home, asked.worker, asked.ttl)
  local taken = {}
  for i, member in ipairs(claimed_before(call, asked, asked.limit)) do
    local _, from = first_text(member, 1)
    local found = execution_of(call, sub(member, from))
    taken[i] = { owner = found.of.owner, hash = found.of.hash, e = found.values, packed = found.packed }
  end
  local again, found = #taken > 0, {}
  if not again then
    found = routes(call, asked)
    taken = choose(call, asked, found)
  end
  prepare(call)
  if not again then write_taken(call, taken) end
  write_all({ call })
  local rows = {}
  for i, one in ipairs(taken) do
    rows[i] = { one.packed, input_of(call, one), past(call, one, #taken <= FEW) }
  end
  return { call.now, again and 1 or 0, rows, counted(found) }
end

local function peek(keys, args)
  local call, asked = request(keys, args)
  if #claimed_before(call, asked, 1) > 0 then return { call.now, 1, 0, false } end
  if command('EXISTS', call.tag .. 'groups:ready') == 0 then return { call.now, 0, 0, false } end
  return { call.now, 0, counted(routes(call, asked)) }
end

offer('claim', claim)
offer('peek', peek, 'no-writes')

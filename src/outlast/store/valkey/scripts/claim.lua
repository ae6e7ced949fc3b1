-- claim: take ready executions of one partition, writing exactly what `decide(view, Claim)` gives.
--
-- argument: {now or false, partition as in keys, namespace, lanes, serves {"workflow|version": true}, capabilities,
--            worker, claim id, limit, lease ttl, suspects or -1, 1 if this claim was here before and goes on, leap}
-- claim answers {now, 1 if it took them before, {execution, input, when it first began, journal, events} ...}; peek {now, 1 if this claim took some before, how many are there, the
-- first one's place in the order of claims}. A peek changes nothing and does not look into flows.

local CHUNK = 64
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

local function free_permits(call, asked, name)
  local values = record(call, QUOTA.kind, '', asked.home .. text(asked.namespace) .. text(name)).values
  return values and values[QUOTA.free] or 0
end

local function served(call, asked, route)
  local workflow, version, requires, quota, mark = string.match(route, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|?(.*)$')
  if not workflow or not asked.serves[workflow .. '|' .. version] then return nil end
  for word in string.gmatch(requires, '[^,]+') do
    if not asked.offers[word] then return nil end
  end
  local suspect = mark == 'suspect'
  if suspect and asked.suspects == 0 then return nil end
  if quota ~= '' and free_permits(call, asked, quota) <= 0 then return nil end
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
            route.set = call.tag .. 'ready:' .. group
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

local function head(route)
  if not route.page or (route.at > #route.page and #route.page == CHUNK) then
    local from = route.page and route.from + CHUNK or 0
    route.page = command('ZRANGE', route.set, from, from + CHUNK - 1)
    route.from, route.at = from, 1
  end
  return route.page[route.at]
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

local function gates_open(call, asked, permits, values)
  -- What is cancelled is only left to undo what it did: its flow may be shut.
  if values[EXECUTION.flow] and tonumber(values[EXECUTION.cancel_requested]) ~= 1 then
    local flow = record(call, FLOW.kind, '', text(asked.namespace) .. text(values[EXECUTION.flow])).values
    if flow and flow[FLOW.state] ~= 'open' then return false end
  end
  local quota = values[EXECUTION.quota]
  if quota then
    local free = permits[quota] or free_permits(call, asked, quota)
    if free <= 0 then return false end
    permits[quota] = free - 1
  end
  return true
end

local function choose(call, asked)
  local chosen, permits, suspects = {}, {}, asked.suspects
  local found = routes(call, asked)
  for _ = 1, LOOKS_MAX do
    if #chosen == asked.limit then break end
    local route, member = best(found)
    if not route then break end
    route.at = route.at + 1
    if not route.suspect or suspects > 0 then
      local execution = execution_of(call, text(asked.namespace) .. sub(member, ORDER + 1))
      if gates_open(call, asked, permits, execution.values) then
        chosen[#chosen + 1] = execution
        if route.suspect then suspects = suspects - 1 end
      end
    end
  end
  return chosen
end

local function attempt_of(call, execution)
  local e = execution.values
  return record(call, ATTEMPT.kind, execution.of.owner, whole(e[EXECUTION.generation]) .. whole(e[EXECUTION.attempt]))
end

-- What its new holder would read first: when it first began, and its journal and events, if these
-- are few. False for each that is left to be asked for.
local function past(call, execution, few)
  local e, owner = execution.values, execution.of.owner
  if e[EXECUTION.resumed] == 0 and e[EXECUTION.generation] == 1 then return false, false, false end
  local first = record(call, ATTEMPT.kind, owner, whole(e[EXECUTION.journal_generation]) .. whole(1)).values
  local began_at = first and first[ATTEMPT.started_at]
  -- All that it has is read for it, so nobody's is who has much.
  if not few or command('HLEN', execution.of.hash) > SHORT + EARLY then return began_at, false, false end
  local journal, events = owned(call, JOURNAL.kind, owner), owned(call, EVENT.kind, owner)
  if #journal > SHORT or #events > EARLY then return began_at, false, false end
  for i, found in ipairs(journal) do journal[i] = told(found) end
  for i, found in ipairs(events) do events[i] = told(found) end
  return began_at, journal, events
end

local NONE = {}
for i = 1, KINDS[ATTEMPT.kind].size do NONE[i] = false end

local function begin_attempt(call, asked, execution)
  local e, a, found = execution.values, ATTEMPT, attempt_of(call, execution)
  local values
  if e[EXECUTION.attempt_open] == 1 then
    values = editable(call, found)
  else
    values = { unpack(NONE, 1, KINDS[a.kind].size) }
    values[a.namespace], values[a.execution] = e[EXECUTION.namespace], e[EXECUTION.id]
    values[a.generation], values[a.number] = e[EXECUTION.generation], e[EXECUTION.attempt]
    values[a.started_at] = call.now
    replace(call, found, values)
  end
  values[a.epoch], values[a.worker], values[a.change_id] = e[EXECUTION.epoch] + asked.leap, asked.worker, asked.claim_id
end

local function take(call, asked, execution)
  begin_attempt(call, asked, execution)
  local E, e = EXECUTION, editable(call, execution)
  local timeout = e[E.timeout_ms]
  e[E.status], e[E.reason], e[E.ready_at] = 'active', false, false
  e[E.epoch], e[E.attempt_open] = e[E.epoch] + asked.leap, 1
  e[E.worker], e[E.claim_id], e[E.change_id] = asked.worker, asked.claim_id, asked.claim_id
  e[E.claimed_at] = call.now
  e[E.attempt_deadline_at] = timeout and call.now + math.max(0, timeout - e[E.ran_ms])
  if e[E.quota] then
    local quota = record(call, QUOTA.kind, '', asked.home .. text(asked.namespace) .. text(e[E.quota]))
    local values = editable(call, quota)
    values[QUOTA.free] = values[QUOTA.free] - 1
  end
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

local function claim(keys, args)
  local call, asked = request(keys, args)
  renew_session(call, asked.home, asked.worker, asked.ttl)
  local taken = {}
  for i, member in ipairs(claimed_before(call, asked, asked.limit)) do
    local _, from = first_text(member, 1)
    taken[i] = execution_of(call, sub(member, from))
  end
  local again = #taken > 0
  if not again then
    taken = choose(call, asked)
    for _, execution in ipairs(taken) do take(call, asked, execution) end
  end
  flush(call)
  local rows = {}
  for i, execution in ipairs(taken) do
    local input = whole(execution.values[EXECUTION.journal_generation]) .. text('input')
    local value = record(call, PAYLOAD.kind, execution.of.owner, input).values[PAYLOAD.value]
    rows[i] = { told(execution), value, past(call, execution, #taken <= FEW) }
  end
  return { call.now, again and 1 or 0, rows }
end

local function peek(keys, args)
  local call, asked = request(keys, args)
  if #claimed_before(call, asked, 1) > 0 then return { call.now, 1, 0, false } end
  if command('EXISTS', call.tag .. 'groups:ready') == 0 then return { call.now, 0, 0, false } end
  local found, count = routes(call, asked), 0
  for _, route in ipairs(found) do count = count + command('ZCARD', route.set) end
  local _, first = best(found)
  return { call.now, 0, count, first }
end

offer('claim', claim)
offer('peek', peek, 'no-writes')

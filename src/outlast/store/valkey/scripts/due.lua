-- due: what time made true in this partition, oldest first, and how much there is in all.
-- argument: {now or false, what, limit, filter, kind, index, position of the namespace, of the execution's id, of the
--   time, whether to count what will be due too, place to go on behind or false}
-- answer: {now, {due at, record} ..., depth, in how many milliseconds the next will be due, or false if that is not
--   known, what is and will be due, or false if that was not asked for, the place to go on behind, or false at the end}
--
-- Through a filter a call looks at LOOKS members of an index and no more; the caller goes on where it stopped.

local HELD_MAX = 100000

-- The record that an index names: of a kind that executions own, the one that each has.
local function named(call, kind, member)
  if KINDS[kind].owned then return record(call, kind, member, '') end
  return record(call, kind, '', member)
end

local function add(due, limit, at, found)
  due.depth = due.depth + 1
  if #due.items < limit then due.items[#due.items + 1] = { at, told(found) } end
end

local function due_by_index(call, asked, due)
  local limit, filter, kind = asked[3], asked[4], asked[5]
  local index, namespace, id = asked[6], asked[7], asked[8]
  local score = asked[9]
  if not filter[1] and not filter[2] then
    due.owed = command('ZCARD', call.tag .. index .. ':')
    local members = command('ZRANGEBYSCORE', call.tag .. index .. ':', '-inf', call.now, 'LIMIT', 0, limit)
    for _, member in ipairs(members) do
      local found = named(call, kind, member)
      add(due, limit, found.values[score], found)
    end
    due.depth = command('ZCOUNT', call.tag .. index .. ':', '-inf', call.now)
    local ahead = '(' .. format('%.0f', call.now)
    local later = command('ZRANGEBYSCORE', call.tag .. index .. ':', ahead, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    due.next_ms = later and tonumber(later) - call.now + call.ahead
    return
  end
  local page, place = page_of_times(call.tag .. index .. ':', asked[10] and '+inf' or call.now, asked[11])
  for _, member in ipairs(page) do
    local found = named(call, kind, member)
    local values = found.values
    if passes(call, filter, values[namespace], values[id]) then
      due.owed = due.owed + 1
      if tonumber(values[score]) <= call.now then add(due, limit, values[score], found) end
    end
  end
  due.place = place
end

-- Leases whose session lapsed or is gone: look at each holder's session, not at each lease.
local function due_leases(call, asked, due)
  local filter, home, found = asked[4], asked[5], {}
  for _, group in ipairs(command('ZRANGE', call.tag .. 'groups:held', 0, HELD_MAX)) do
    local session = record(call, SESSION.kind, '', home .. group).values
    local expires_at = session and session[SESSION.expires_at]
    if not expires_at or tonumber(expires_at) <= call.now then
      for _, member in ipairs(command('ZRANGE', call.tag .. 'held:' .. group, 0, HELD_MAX)) do
        local _, from = first_text(member, 1)
        local execution = execution_of(call, sub(member, from))
        local values = execution.values
        if passes(call, filter, values[EXECUTION.namespace], values[EXECUTION.id]) then
          found[#found + 1] = { expires_at or values[EXECUTION.claimed_at], execution }
        end
      end
    end
  end
  table.sort(found, function(a, b) return tonumber(a[1]) < tonumber(b[1]) end)
  for _, item in ipairs(found) do add(due, asked[3], item[1], item[2]) end
end

-- Sessions that lapsed and hold nothing any more.
local function due_sessions(call, asked, due)
  local page, place = page_of_times(call.tag .. asked[6] .. ':', call.now, asked[11])
  for _, member in ipairs(page) do
    local session = record(call, SESSION.kind, '', member)
    local values = session.values
    if command('EXISTS', call.tag .. 'held:' .. text(values[SESSION.worker])) == 0 then
      add(due, asked[3], values[SESSION.expires_at], session)
    end
  end
  due.place = place
end

local function look_due(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, asked[1])
  local due = { items = {}, depth = 0, owed = 0, place = false }
  if asked[2] == 'lease' then
    due_leases(call, asked, due)
  elseif asked[2] == 'session' then
    due_sessions(call, asked, due)
  else
    due_by_index(call, asked, due)
  end
  return { call.now, due.items, due.depth, due.next_ms or false, asked[10] and due.owed, due.place }
end

offer('due', look_due, 'no-writes')

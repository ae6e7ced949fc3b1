-- load, scan, completions, frames: records of this partition as they are.

-- argument: keys (kind, owner, rest, one after the other); answer: a record or false for each.
local function load(keys, args)
  local asked = unpacked(args[1])
  local call, rows = begin(keys, 0), {}
  for i = 1, #asked, 3 do rows[#rows + 1] = told(record(call, asked[i], asked[i + 1], asked[i + 2])) end
  return rows
end

-- What a list has of a kind behind a record, in its order: fields.
local function page_of(list, kind, prefix, after, limit)
  local letter = LETTERS[kind]
  if not KINDS[kind].seq then
    local low, high = under(letter .. prefix)
    if after then low = '(' .. letter .. after end
    return command('ZRANGEBYLEX', list, low, high, 'LIMIT', 0, limit)
  end
  local low, high = under(letter)
  if after then low = '(' .. after end
  local page = {}
  repeat
    local members = command('ZRANGEBYLEX', list, low, high, 'LIMIT', 0, limit)
    for _, member in ipairs(members) do
      local rest = sub(member, 18)
      if sub(rest, 1, #prefix) == prefix and #page < limit then page[#page + 1] = letter .. rest end
    end
    low = #members > 0 and '(' .. members[#members]
  until #members < limit or #page == limit
  return page
end

-- All records of a kind that an owner of few has, in no order. Its other kinds are not read: a scan passes a thousand
-- owners, and what they have may be large.
local function picked(call, kind, known)
  local letter, fields, all = LETTERS[kind], {}, {}
  for _, field in ipairs(command('HKEYS', known.hash)) do
    if sub(field, 1, 1) == letter then fields[#fields + 1] = field end
  end
  if #fields == 0 then return all end
  local got = command('HMGET', known.hash, unpack(fields))
  for i, field in ipairs(fields) do all[i] = keep(known, field, got[i]) end
  return all
end

-- The records of a kind that an owner has, from a place on: in their order if the owner has a list, else all of them,
-- and whoever asked sorts them.
local function records_of(call, kind, owner, prefix, after, limit)
  local known = owner_of(call, owner)
  if owner ~= '' and command('HLEN', known.hash) <= LISTED then return picked(call, kind, known) end
  if after and KINDS[kind].seq then
    local last = record(call, kind, owner, after)
    after = last.values and listed(last, last.values)
  end
  local page = page_of(list_of(call, owner), kind, prefix, after, limit)
  for i, field in ipairs(page) do page[i] = record(call, kind, owner, sub(field, 2)) end
  return page
end

local function add_rows(rows, page)
  for _, found in ipairs(page) do rows[#rows + 1] = told(found) end
end

-- argument: {kind, owner, prefix of the rest, rest to go on behind or false, limit}
-- answer: records, those of an owner without a list in no order, and whatever their prefix and number
local function scan(keys, args)
  local asked = unpacked(args[1])
  local rows = {}
  add_rows(rows, records_of(begin(keys, 0), asked[1], asked[2], asked[3], asked[4], asked[5]))
  return rows
end

-- Across owners: those whose name begins with a prefix. A call looks at LOOKS of them and no more.
-- argument: {kind, prefix of the owner, owner to go on with ('[...') or behind ('(...') or false, rest of that owner to
--   go on behind or false, limit}
-- answer: {records as of a scan, owner after owner; the owner to go on behind, or false at the end}; if these are enough,
--   false as well, but for executions: an owner is one
local function scan_owners(keys, args)
  local asked = unpacked(args[1])
  local call, rows, kind = begin(keys, 0), {}, asked[1]
  local low, high = under(asked[2])
  low = asked[3] or low
  local enough = asked[5] + LISTED -- the first owner may give all that it has, also what was read before
  local owners = command('ZRANGEBYLEX', call.tag .. 'owners:', low, high, 'LIMIT', 0, LOOKS)
  for _, owner in ipairs(owners) do
    if kind == EXECUTION.kind then
      local found = execution_of(call, owner)
      if found.values then rows[#rows + 1] = told(found) end
      if #rows == asked[5] then return { rows, owner } end
    else
      add_rows(rows, records_of(call, kind, owner, '', low == '[' .. owner and asked[4], enough - #rows))
    end
    if #rows >= enough then return { rows, false } end
  end
  return { rows, #owners == LOOKS and owners[#owners] }
end

-- Sequenced kinds across owners, in the order of their numbers. A call that leaves some out looks at LOOKS and no more.
-- argument: {kind, prefix of the owner, number to go on behind, limit, filter, position of the namespace, of the id}
-- answer: {newest number given, records, number to go on behind, or false at the end or if these are enough}
local function feed(keys, args)
  local asked = unpacked(args[1])
  local call, rows = begin(keys, 0), {}
  local kind, prefix, limit, filter = asked[1], asked[2], asked[4], asked[5]
  local set = call.tag .. 'order_' .. KINDS[kind].name .. ':'
  local size = (prefix ~= '' or filter[1] or filter[2]) and LOOKS or limit
  local members = command('ZRANGEBYSCORE', set, '(' .. format('%.0f', asked[3]), '+inf', 'LIMIT', 0, size)
  for _, member in ipairs(members) do
    if sub(member, 1, #prefix) == prefix then
      local _, stop = first_text(member, 1)
      _, stop = first_text(member, stop)
      local found = record(call, kind, sub(member, 1, stop - 1), sub(member, stop))
      if passes(call, filter, found.values[asked[6]], found.values[asked[7]]) then
        rows[#rows + 1] = told(found)
        if #rows == limit then return { call.seq, rows, false } end
      end
    end
  end
  return { call.seq, rows, #members == size and tonumber(command('ZSCORE', set, members[size])) }
end

-- argument: {owner, after, limit}; answer: packed {at, value}
local function frames(keys, args)
  local asked = unpacked(args[1])
  local call, rows = begin(keys, 0), {}
  local found = command('LRANGE', call.tag .. 'frames:' .. asked[1], asked[2], asked[2] + asked[3] - 1)
  for i, packed in ipairs(found) do rows[i] = unpacked(packed) end
  return rows
end

local function clock(keys, args)
  return begin(keys, unpacked(args[1])[1]).now
end

offer('load', load, 'no-writes')
offer('scan', scan, 'no-writes')
offer('scan_owners', scan_owners, 'no-writes')
offer('feed', feed, 'no-writes')
offer('frames', frames, 'no-writes')
offer('clock', clock, 'no-writes')

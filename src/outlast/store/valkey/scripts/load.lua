-- load, scan, completions, frames: records of this partition as they are.

-- argument: keys (kind, owner, rest, one after the other); answer: a record or false for each.
local function load(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local call, rows = begin(keys, 0), {}
  for i = 1, #asked, 3 do rows[#rows + 1] = record(call, asked[i], asked[i + 1], asked[i + 2]).values end
  return rows
end

-- What a sorted set of rests has to give, in its order.
local function page_of(call, kind, set, prefix, after, limit)
  if not kind.seq then
    local low, high = under(prefix)
    if after then low = '(' .. after end
    return redis.call('ZRANGEBYLEX', set, low, high, 'LIMIT', 0, limit)
  end
  local seq = after and redis.call('ZSCORE', set, after)
  local low, page, from = seq and '(' .. seq or '-inf', {}, 0
  while #page < limit do
    local members = redis.call('ZRANGEBYSCORE', set, low, '+inf', 'LIMIT', from, limit)
    for _, member in ipairs(members) do
      if string.sub(member, 1, #prefix) == prefix and #page < limit then page[#page + 1] = member end
    end
    if #members < limit then break end
    from = from + limit
  end
  return page
end

-- argument: {kind, owner, prefix of the rest, rest to go on behind or false, limit}; answer: records
local function scan(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local call, rows = begin(keys, 0), {}
  local kind, owner = KINDS[asked[1]], asked[2]
  local page = page_of(call, kind, call.tag .. 'keys:' .. kind.name .. ':' .. owner, asked[3], asked[4], asked[5])
  for i, rest in ipairs(page) do rows[i] = record(call, asked[1], owner, rest).values end
  return rows
end

-- Across owners: those whose name begins with a prefix.
-- argument: {kind, prefix of the owner, owner to go on behind or false, rest of that owner to go on behind, limit}
local function scan_owners(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local call, rows = begin(keys, 0), {}
  local kind, limit = KINDS[asked[1]], asked[5]
  local low, high = under(asked[2])
  if asked[3] then low = '[' .. asked[3] end
  for _, owner in ipairs(redis.call('ZRANGEBYLEX', call.tag .. 'owners:' .. kind.name, low, high, 'LIMIT', 0, limit + 1)) do
    local after = owner == asked[3] and asked[4]
    local set = call.tag .. 'keys:' .. kind.name .. ':' .. owner
    for _, rest in ipairs(page_of(call, kind, set, '', after, limit - #rows)) do
      rows[#rows + 1] = record(call, asked[1], owner, rest).values
    end
    if #rows == limit then break end
  end
  return rows
end

-- Sequenced kinds across owners, in the order of their numbers.
-- argument: {kind, prefix of the owner, number to go on behind, limit, filter, position of the namespace, of the id,
--            length of an owner or 0}; answer: {newest number given, records}
local function feed(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local call, rows = begin(keys, 0), {}
  local kind, prefix, limit = asked[1], asked[2], asked[4]
  local set, low, from = call.tag .. 'order_' .. KINDS[kind].name .. ':', '(' .. string.format('%.0f', asked[3]), 0
  local newest = tonumber(redis.call('GET', call.tag .. 'seq') or '0')
  while #rows < limit do
    local members = redis.call('ZRANGEBYSCORE', set, low, '+inf', 'LIMIT', from, limit)
    for _, member in ipairs(members) do
      if #rows == limit then break end
      if string.sub(member, 1, #prefix) == prefix then
        local _, stop = first_text(member, 1)
        _, stop = first_text(member, stop)
        local values = record(call, kind, string.sub(member, 1, stop - 1), string.sub(member, stop)).values
        if passes(call, asked[5], values[asked[6]], values[asked[7]]) then rows[#rows + 1] = values end
      end
    end
    if #members < limit then break end
    from = from + limit
  end
  return { newest, rows }
end

-- argument: {owner, after, limit}; answer: packed {at, value}
local function frames(keys, args)
  local asked = cmsgpack.unpack(args[1])
  local call, rows = begin(keys, 0), {}
  local found = redis.call('LRANGE', call.tag .. 'frames:' .. asked[1], asked[2], asked[2] + asked[3] - 1)
  for i, packed in ipairs(found) do rows[i] = cmsgpack.unpack(packed) end
  return rows
end

local function clock(keys, args)
  return begin(keys, cmsgpack.unpack(args[1])[1]).now
end

offer('load', load, 'no-writes')
offer('scan', scan, 'no-writes')
offer('scan_owners', scan_owners, 'no-writes')
offer('feed', feed, 'no-writes')
offer('frames', frames, 'no-writes')
offer('clock', clock, 'no-writes')

-- records: one call's view of a partition. Every other script reads and writes through it.
--
-- A record is an array of values, packed, in the hash of its kind and owner; null is false, a flag is 0 or 1, a number
-- past 2^53 is its digits. What a call reads is kept, what it changes stays in memory until `flush`, which writes each
-- record once and moves its index entries. So nothing is written before everything is decided: Valkey does not undo a
-- function that fails half-way.
--
-- KINDS and INDEXES come before this text: `library.py` writes them from `model/kinds.py` and `layout.py`.

local EXACT = 9007199254740992

-- ---- texts: the same encoding as keys.py ---------------------------------------------------------------------------

local function text(value)
  if string.find(value, '[%z\1]') then
    value = string.gsub(value, '[%z\1]', function(c) return c == '\0' and '\1\1' or '\1\2' end)
  end
  return value .. '\0'
end

-- The first text of an encoded sequence, and where the next begins.
local function first_text(encoded, from)
  local stop = string.find(encoded, '\0', from, true)
  local value = string.sub(encoded, from, stop - 1)
  if string.find(value, '\1', 1, true) then
    value = string.gsub(value, '\1([\1\2])', function(c) return c == '\1' and '\0' or '\1' end)
  end
  return value, stop + 1
end

-- A number that is not negative, so that longer ones come later: its length as a letter, then its digits.
local function whole(number)
  local written = string.format('%.0f', number)
  return string.char(96 + #written) .. written
end

-- All that begins with these bytes, as bounds of a range by lex.
local function under(prefix)
  return '[' .. prefix, '(' .. prefix .. '\255'
end

-- ---- the call ------------------------------------------------------------------------------------------------------

local function head_of(keys) return string.sub(keys[1], 1, -6) .. 'head' end

-- A function of a partition. Its last argument is the head that the caller knows (`founding.py`). A partition that has
-- another one is refused; one that has none may be read: nothing was written to it, or by an older version.
local function offer(name, callback, flag)
  local function called(keys, args)
    local found = redis.call('MGET', keys[1], head_of(keys))
    if found[2] ~= table.remove(args) and (found[2] or flag ~= 'no-writes') then
      return redis.error_reply('UNFOUNDED this partition is not one of the store that the caller has opened')
    end
    keys.clock = found[1]
    return callback(keys, args)
  end
  redis.register_function { function_name = NAME .. name, callback = called, flags = flag and { flag } or {} }
end

-- keys[1] is the partition's clock; everything else of the partition has the same tag before its name.
-- The time is the server's, or a test clock's; it never goes back: where it is `ahead` of that clock, it stands still.
local function begin(keys, asked, args)
  local known = tonumber(keys.clock or '0')
  local now = asked
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local ahead = math.max(0, known - now)
  return {
    args = args, clock = keys[1], tag = string.sub(keys[1], 1, -6), known = known, now = now + ahead, ahead = ahead,
    groups = {}, dirty = {}, enters = {}, leaves = {}, came = {}, went = {},
  }
end

local function record(call, kind, owner, rest)
  local hash = call.tag .. KINDS[kind].name .. ':' .. owner
  local group = call.groups[hash]
  if not group then
    group = {}
    call.groups[hash] = group
  end
  local found = group[rest]
  if not found then
    local packed = redis.call('HGET', hash, rest)
    local values = packed and cmsgpack.unpack(packed)
    found = { kind = kind, owner = owner, rest = rest, hash = hash, before = values, values = values }
    group[rest] = found
  end
  return found
end

local function replace(call, found, values)
  if not found.dirty then
    found.dirty = true
    call.dirty[#call.dirty + 1] = found
  end
  found.values = values
end

local function copied(values)
  local copy = {}
  for i, value in ipairs(values) do copy[i] = value end
  return copy
end

-- A copy of the record's values that may be changed: those read stay as they were, for the indexes.
local function editable(call, found)
  if found.values == found.before then replace(call, found, copied(found.before)) end
  return found.values
end

-- A value as it is stored: {ms} is a time relative to the commit, {0, n} the bytes of the n-th argument.
local function given(call, value)
  if type(value) ~= 'table' then return value end
  if value[2] then return call.args[value[2]] end
  return call.now + value[1]
end

-- The partition's next number. It follows the clock: a replica that takes over without having received everything does
-- not give numbers again that were lost with it, and which readers of a feed have passed.
local function next_number(call)
  if not call.seq then call.seq = tonumber(redis.call('GET', call.tag .. 'seq') or '0') end
  call.seq = math.max(call.seq + 1, math.min(call.now * 1000, EXACT / 2))
  call.numbered = true
  return call.seq
end

-- A new record's values as they are stored; a sequenced record gets the partition's next number.
local function settled(call, kind, values)
  for _, position in ipairs(KINDS[kind].given) do values[position] = given(call, values[position]) end
  local seq = KINDS[kind].seq
  if seq then values[seq] = next_number(call) end
  return values
end

-- ---- indexes -------------------------------------------------------------------------------------------------------

local function digits(value, width)
  local most = 10 ^ width - 1
  if value < 0 then value = 0 elseif value > most then value = most end
  return string.format(WIDTHS[width], value)
end

-- The group of an index that a record stands in. Most records of a call stand in the same: the last one is remembered.
local function group_of(index, values, side)
  local last, same = index[side], true
  if last then
    for i, position in ipairs(index.group) do
      if last[i] ~= values[position] then
        same = false
        break
      end
    end
    if same then return last.made end
  end
  local parts = {}
  last = {}
  for i, position in ipairs(index.group) do
    last[i] = values[position]
    parts[i] = text(values[position] or '')
  end
  last.made = table.concat(parts)
  index[side] = last
  return last.made
end

-- Its member there. Indexes whose members are made alike share it.
local function member_of(index, found, values, known)
  if not index.member then return found.owner .. found.rest end
  local made = known[index.shape]
  if made then return made end
  local parts = {}
  for i, part in ipairs(index.member) do
    local value = values[part.position]
    if part.up then
      parts[i] = digits(tonumber(value or 0), part.up)
    elseif part.down then
      parts[i] = digits(part.top - tonumber(value or 0), part.down)
    else
      parts[i] = text(value or '')
    end
  end
  made = table.concat(parts)
  known[index.shape] = made
  return made
end

local function stands_in(index, values)
  if not values or (index.where and not values[index.where]) then return false end
  return not (index.unless and values[index.unless])
end

local function same_at(positions, was, is)
  for _, position in ipairs(positions) do
    if was[position] ~= is[position] then return false end
  end
  return true
end

-- Entries that come and go are gathered by sorted set, and written together by `flush`.
local function gathered(sets, name)
  local list = sets[name]
  if not list then
    list = {}
    sets[name] = list
  end
  return list
end

local function enter(call, set, score, member)
  local list = gathered(call.enters, set)
  list[#list + 1] = score
  list[#list + 1] = member
end

local function leave(call, set, member)
  local list = gathered(call.leaves, set)
  list[#list + 1] = member
end

local function reindex(call, found, was, is)
  local known_was, known_is = {}, {}
  for _, index in ipairs(INDEXES[found.kind]) do
    if not was or not is or not same_at(index.fields, was, is) then
      local stood, stands = stands_in(index, was), stands_in(index, is)
      local old_group, old_member, group, member
      if stands then
        group, member = group_of(index, is, 'is'), member_of(index, found, is, known_is)
        enter(call, call.tag .. index.name .. ':' .. group, index.score and tonumber(is[index.score]) or 0, member)
        if index.registry then call.came[index.name .. '\0' .. group] = { index.name, group } end
      end
      if stood then
        if stands and same_at(index.placed, was, is) then
          old_member = member
        else
          old_member = member_of(index, found, was, known_was)
        end
        old_group = group_of(index, was, 'was')
        if old_group ~= group or old_member ~= member then
          leave(call, call.tag .. index.name .. ':' .. old_group, old_member)
          if index.registry then call.went[index.name .. '\0' .. old_group] = { index.name, old_group } end
        end
      end
    end
  end
end

-- The records of one kind and owner in the order of a scan; and, of kinds that have owners, who owns any.
local function list(call, found, was, is)
  local kind = KINDS[found.kind]
  local set = call.tag .. 'keys:' .. kind.name .. ':' .. found.owner
  if is then
    if was and not kind.seq then return end
    if not kind.owned then
      enter(call, set, kind.seq and is[kind.seq] or 0, found.rest)
      return
    end
    local added = redis.call('ZADD', set, kind.seq and is[kind.seq] or 0, found.rest)
    if added == 1 then enter(call, call.tag .. 'owners:' .. kind.name, 0, found.owner) end
  elseif was then
    redis.call('ZREM', set, found.rest)
    if kind.owned and redis.call('EXISTS', set) == 0 then
      redis.call('ZREM', call.tag .. 'owners:' .. kind.name, found.owner)
    end
  end
end

-- At most so many arguments of one command.
local TOGETHER = 2000

local function all_at_once(command, name, list)
  for from = 1, #list, TOGETHER do
    redis.call(command, name, unpack(list, from, math.min(from + TOGETHER - 1, #list)))
  end
end

local function write_records(call)
  local hashes = {}
  for _, found in ipairs(call.dirty) do
    if found.values then
      local list = gathered(hashes, found.hash)
      list[#list + 1] = found.rest
      list[#list + 1] = cmsgpack.pack(found.values)
    elseif found.before then
      redis.call('HDEL', found.hash, found.rest)
    end
  end
  for hash, list in pairs(hashes) do all_at_once('HSET', hash, list) end
end

-- Entered before left: a group that stays must not be struck from the registry in between.
local function write_indexes(call)
  for _, one in pairs(call.came) do enter(call, call.tag .. 'groups:' .. one[1], 0, one[2]) end
  for set, list in pairs(call.enters) do all_at_once('ZADD', set, list) end
  for set, list in pairs(call.leaves) do all_at_once('ZREM', set, list) end
  for _, one in pairs(call.went) do
    if redis.call('EXISTS', call.tag .. one[1] .. ':' .. one[2]) == 0 then
      redis.call('ZREM', call.tag .. 'groups:' .. one[1], one[2])
    end
  end
end

local function flush(call)
  write_records(call)
  for _, found in ipairs(call.dirty) do
    list(call, found, found.before, found.values)
    reindex(call, found, found.before, found.values)
  end
  write_indexes(call)
  if call.numbered then redis.call('SET', call.tag .. 'seq', string.format('%.0f', call.seq)) end
  -- Also if it stands still: WAIT after a repeated call waits for what this connection wrote, so it must write.
  redis.call('SET', call.clock, string.format('%.0f', call.now))
end

-- ---- filters -------------------------------------------------------------------------------------------------------

-- Whether an execution passes: {namespace or false, tag or false, value}.
local function tagged(call, owner, tag, value)
  local values = record(call, TAG.kind, owner, text(tag)).values
  return values and values[TAG.value] == value
end

local function passes(call, filter, namespace, id)
  if filter[1] and filter[1] ~= namespace then return false end
  return not filter[2] or tagged(call, text(namespace) .. text(id), filter[2], filter[3])
end

-- ---- looks ---------------------------------------------------------------------------------------------------------

-- A call looks at so many members of an index and no more; the caller goes on where it stopped.
local LOOKS = 1000

-- The members of an index of times up to one, oldest first, behind a place {time, member}, or false for the beginning;
-- and the place to go on behind, or false at the end. If that member is gone, those of its time are looked at again.
local function page_of_times(set, last, behind)
  local from, stop = 0, redis.call('ZCOUNT', set, '-inf', last)
  if behind then
    local stands = redis.call('ZSCORE', set, behind[2]) == behind[1]
    from = stands and redis.call('ZRANK', set, behind[2]) + 1 or redis.call('ZCOUNT', set, '-inf', '(' .. behind[1])
  end
  if from >= stop then return {}, false end
  local page = redis.call('ZRANGE', set, from, math.min(from + LOOKS, stop) - 1)
  if from + LOOKS >= stop then return page, false end
  return page, { redis.call('ZSCORE', set, page[#page]), page[#page] }
end

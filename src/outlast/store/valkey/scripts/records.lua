-- records: one call's view of a partition. Every other script reads and writes through it.
--
-- A record is a sequence of values, packed, in the hash of its owner (an execution; what belongs to none is the
-- partition's own), under the letter of its kind and the rest of its key; null is false, a flag is 0 or 1, a number past
-- 2^53 is its digits. What a call reads is kept, what it changes stays in memory until `flush`, which writes each record
-- once and moves its index entries. So nothing is written before everything is decided: Valkey does not undo a function
-- that fails half-way.
--
-- KINDS comes before this text, and what INDEXES holds behind it: `library.py` writes both from `model/kinds.py` and
-- `layout.py`.

-- What every call uses many times: a local is found at once. These are there only when a function is called.
local command, pack, unpacked, some_unpacked, sub, find, byte, format

local EXACT = 9007199254740992
local INDEXES = {}

-- ---- texts: the same encoding as keys.py ---------------------------------------------------------------------------

local function text(value)
  if find(value, '\0', 1, true) or find(value, '\1', 1, true) then
    value = string.gsub(value, '[%z\1]', function(c) return c == '\0' and '\1\1' or '\1\2' end)
  end
  return value .. '\0'
end

-- The first text of an encoded sequence, and where the next begins.
local function first_text(encoded, from)
  local stop = find(encoded, '\0', from, true)
  local value = sub(encoded, from, stop - 1)
  if find(value, '\1', 1, true) then
    value = string.gsub(value, '\1([\1\2])', function(c) return c == '\1' and '\0' or '\1' end)
  end
  return value, stop + 1
end

-- A number that is not negative, so that longer ones come later: its length as a letter, then its digits.
-- Small ones, as most generations and attempts are, are remembered.
local WHOLE = {}
local function whole(number)
  local made = WHOLE[number]
  if not made then
    local written = format('%.0f', number)
    made = string.char(96 + #written) .. written
    if number < 100 then WHOLE[number] = made end
  end
  return made
end

-- All that begins with these bytes, as bounds of a range by lex.
local function under(prefix)
  return '[' .. prefix, '(' .. prefix .. '\255'
end

-- ---- the call ------------------------------------------------------------------------------------------------------

local function tag_of(clock) return string.sub(clock, 1, -6) end
local function head_of(keys) return tag_of(keys[1]) .. 'head' end

-- A function of a partition, or of several on a server that is no cluster: each key is the clock of one, and everything
-- else of that partition has the same tag before its name. The last argument is the head that the caller knows
-- (`founding.py`). A partition that has another one is refused; one that has none may be read: nothing was written to
-- it, or by an older version.
local function offer(name, callback, flag)
  local function called(keys, args)
    command, pack, unpacked, some_unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack, cmsgpack.unpack_limit
    sub, find, byte, format = string.sub, string.find, string.byte, string.format
    local head, tags, asked = table.remove(args), {}, {}
    for place = 1, #keys do
      local tag, last = tag_of(keys[place]), 3 * place
      tags[place] = tag
      asked[last - 2], asked[last - 1], asked[last] = keys[place], tag .. 'head', tag .. 'seq'
    end
    local found = command('MGET', unpack(asked))
    for place = 1, #keys do
      local known = found[3 * place - 1]
      if known ~= head and (known or flag ~= 'no-writes') then
        return redis.error_reply('UNFOUNDED this partition is not one of the store that the caller has opened')
      end
    end
    keys.tags, keys.found = tags, found
    return callback(keys, args)
  end
  redis.register_function { function_name = NAME .. name, callback = called, flags = flag and { flag } or {} }
end

local function server_time(keys)
  if not keys.time then
    local time = command('TIME')
    keys.time, keys.micros = time[1] * 1000 + math.floor(time[2] / 1000), time[2] % 1000
  end
  return keys.time
end

-- One of the partitions, the first if nothing is said. The time is the server's, or a test clock's; it never goes back:
-- where it is `ahead` of that clock, it stands still.
local function begin(keys, asked, args, place)
  place = place or 1
  local known, seq = keys.found[3 * place - 2], keys.found[3 * place]
  local now = asked or server_time(keys)
  local ahead = math.max(0, tonumber(known or '0') - now)
  local micros = not asked and ahead == 0 and keys.micros or 0
  return {
    args = args, clock = keys[place], tag = keys.tags[place], seq = tonumber(seq or '0'), now = now + ahead, ahead = ahead, micros = micros,
    owners = {}, tails = {}, dirty = {}, enters = {}, leaves = {}, came = {}, went = {},
  }
end

-- What the call knows of an owner: `found` is its records by field, `added` and `removed` count what the call changes.
local function owner_of(call, owner)
  local known = call.owners[owner]
  if not known then
    known = { owner = owner, hash = call.tag .. 'of:' .. owner, found = {}, added = 0, removed = 0 }
    call.owners[owner] = known
  end
  return known
end

local function keep(known, field, packed)
  local found
  if packed then
    local values = { unpacked(packed) }
    found = { kind = byte(field) - 64, field = field, of = known, packed = packed, before = values, values = values }
  else
    found = { kind = byte(field) - 64, field = field, of = known, packed = false, values = false }
  end
  known.found[field] = found
  return found
end

local function record(call, kind, owner, rest)
  local known, field = owner_of(call, owner), LETTERS[kind] .. rest
  return known.found[field] or keep(known, field, command('HGET', known.hash, field))
end

local function execution_of(call, owner)
  return record(call, EXECUTION.kind, owner, '')
end

-- All records of a kind that an owner of few has, in no order.
local function owned(call, kind, owner)
  local known, letter, all = owner_of(call, owner), LETTERS[kind], {}
  local got = known.all or command('HGETALL', known.hash)
  known.all = got
  for i = 1, #got, 2 do
    local field = got[i]
    if sub(field, 1, 1) == letter then all[#all + 1] = known.found[field] or keep(known, field, got[i + 1]) end
  end
  return all
end

-- The key of a record as indexes name it.
local function key_of(found)
  return found.of.owner .. sub(found.field, 2)
end

-- A record's values; false if it is not there. One that was packed before it came is unpacked if somebody asks.
local function values_of(found)
  if found.values == nil then found.values = { unpacked(found.packed) } end
  return found.values
end

-- A record as it is answered: packed, as it stands, unless it has bytes, which could not be told from text then.
local function told(found)
  if KINDS[found.kind].plain then return found.packed end
  return found.values
end

local function touch(call, found, packed, values)
  if not found.dirty then
    found.dirty = true
    call.dirty[#call.dirty + 1] = found
  end
  found.packed, found.values = packed, values
end

-- New values; false if it is to be gone. They are packed when they are written.
local function replace(call, found, values)
  touch(call, found, values and nil, values)
end

local function copied(values)
  return { unpack(values) }
end

-- A copy of the record's values that may be changed: those read stay as they were, for the indexes.
local function editable(call, found)
  local values = values_of(found)
  if values == found.before then values = copied(values) end
  replace(call, found, values)
  return values
end

-- A value that is not sent as it is stored, and where it stands: a time relative to the commit has its position below
-- zero, bytes theirs behind BESIDE, and their value is the number of an argument.
local function given(call, position, value)
  if position < 0 then return -position, call.now + value end
  return position - BESIDE, call.args[value]
end

-- The partition's next number. It follows the clock: a replica that takes over without having received everything does
-- not give numbers again that were lost with it, and which readers of a feed have passed. And of what several partitions
-- number within a millisecond, the numbers tell which came first, as far as their servers' clocks agree.
local function next_number(call)
  call.seq = math.max(call.seq + 1, math.min(call.now * 1000 + call.micros, EXACT / 2))
  call.numbered = true
  return call.seq
end

-- The end of a packed record: its times, of which each is none, relative to the commit, a number, or digits. Most
-- records of a call end alike.
local function tail_of(call, times)
  local made = call.tails[times]
  if not made then
    local parts = {}
    for how, number in string.gmatch(times, "([+=']?)(-?%d*),") do
      if how == '+' then
        number = call.now + tonumber(number)
      elseif how == '=' then
        number = tonumber(number)
      elseif how == '' then
        number = false
      end
      parts[#parts + 1] = pack(number)
    end
    made = table.concat(parts)
    call.tails[times] = made
  end
  return made
end

-- A whole record, packed but for its times; a sequenced one gets the partition's next number, which comes last.
local function put(call, found, body, times)
  local packed = times == '' and body or body .. tail_of(call, times)
  if KINDS[found.kind].seq then packed = packed .. pack(next_number(call)) end
  touch(call, found, packed, nil)
end

-- ---- indexes -------------------------------------------------------------------------------------------------------

-- Of fixed width. Most records of a call have the same times: the last number of each width is remembered.
local digits
do
  local last, made = {}, {}
  digits = function(value, width)
    if value ~= last[width] then
      made[width] = format(WIDTHS[width], math.max(0, math.min(value, 10 ^ width - 1)))
      last[width] = value
    end
    return made[width]
  end
end

-- Entries that come and go are gathered by sorted set, and written together by `flush`.
local function gather(sets, name, one, other)
  local list = sets[name]
  if not list then
    sets[name] = { one, other }
    return
  end
  local size = #list
  list[size + 1] = one
  list[size + 2] = other
end

local function enter(call, set, score, member) gather(call.enters, set, score, member) end

local function leave(call, set, member) gather(call.leaves, set, member) end

-- From one place to another, or within a set; nil is nowhere. An index whose groups are listed tells its name.
local function move(call, registry, old_set, old_member, set, member, score)
  if set then
    enter(call, set, score, member)
    if registry then call.came[set] = registry end
  end
  if old_set and (old_set ~= set or old_member ~= member) then
    leave(call, old_set, old_member)
    if registry then call.went[old_set] = registry end
  end
end

local function reindex(call, found, was, is)
  local indexes = INDEXES[found.kind]
  if not indexes then return end
  if not was then
    if is then indexes.enter(call, is, found) end
  elseif is then
    indexes.move(call, was, is, found)
  else
    indexes.leave(call, was, found)
  end
end

-- ---- lists ---------------------------------------------------------------------------------------------------------

-- The records of an owner in the order of a scan; only owners of many have a list, for few can be sorted by who reads.
-- A sequenced record stands there by its number.
local function listed(found, values)
  local seq = KINDS[found.kind].seq
  if not seq then return found.field end
  return LETTERS[found.kind] .. format('%016.0f', values[seq]) .. sub(found.field, 2)
end

local function list_of(call, owner) return call.tag .. 'keys:' .. owner end

-- An owner has more than few now: all that it has is listed.
local function list_all(call, known)
  local list = list_of(call, known.owner)
  for _, field in ipairs(command('HKEYS', known.hash)) do
    local found = known.found[field]
    if not found and KINDS[byte(field) - 64].seq then
      found = keep(known, field, command('HGET', known.hash, field))
    end
    enter(call, list, 0, found and listed(found, values_of(found)) or field)
  end
end

local function list_changed(call, known)
  local list = list_of(call, known.owner)
  for _, found in pairs(known.found) do
    if found.dirty then
      local was, is = found.before and listed(found, found.before), found.packed and listed(found, values_of(found))
      if was ~= is then
        if is then enter(call, list, 0, is) end
        if was then leave(call, list, was) end
      end
    end
  end
end

-- After its records were written: who has any is listed, and what belongs to those that have many.
local function settle(call, known)
  if known.owner == '' then return list_changed(call, known) end
  local size = command('HLEN', known.hash)
  local before = size - known.added + known.removed
  if before == 0 and size > 0 then enter(call, call.tag .. 'owners:', 0, known.owner) end
  if before > 0 and size == 0 then leave(call, call.tag .. 'owners:', known.owner) end
  if size > LISTED then
    if before > LISTED then list_changed(call, known) else list_all(call, known) end
  elseif before > LISTED then
    command('UNLINK', list_of(call, known.owner))
  end
end

-- ---- flush ---------------------------------------------------------------------------------------------------------

-- At most so many arguments of one command.
local TOGETHER = 2000

local function all_at_once(what, name, list)
  for from = 1, #list, TOGETHER do
    command(what, name, unpack(list, from, math.min(from + TOGETHER - 1, #list)))
  end
end

-- What is to be written, as it is written, and where indexes name it. Whatever could fail fails here: a script that fails
-- keeps what it has written, so all of a call is prepared before any of it is written.
local function prepare(call)
  for _, found in ipairs(call.dirty) do
    if INDEXES[found.kind] then reindex(call, found, found.before, values_of(found)) end
    if found.packed == nil then found.packed = sub(pack(found.values), KINDS[found.kind].head + 1) end
  end
end

local function write_records(call)
  local sets, gone = {}, {}
  for _, found in ipairs(call.dirty) do
    local known = found.of
    if found.packed == false then
      if found.before then
        gather(gone, known, found.field)
        known.removed = known.removed + 1
      end
    else
      gather(sets, known, found.field, found.packed)
      if not found.before then
        known.added = known.added + 1
      elseif KINDS[found.kind].seq then
        known.renumbered = true
      end
    end
  end
  for known, list in pairs(sets) do all_at_once('HSET', known.hash, list) end
  for known, list in pairs(gone) do all_at_once('HDEL', known.hash, list) end
end

-- Entered before left: a group that stays must not be struck from the registry in between.
local function write_indexes(call)
  local tag = call.tag
  for set, name in pairs(call.came) do enter(call, tag .. 'groups:' .. name, 0, sub(set, #tag + #name + 2)) end
  for set, list in pairs(call.enters) do all_at_once('ZADD', set, list) end
  for set, list in pairs(call.leaves) do all_at_once('ZREM', set, list) end
  for set, name in pairs(call.went) do
    if command('EXISTS', set) == 0 then
      command('ZREM', tag .. 'groups:' .. name, sub(set, #tag + #name + 2))
    end
  end
end

local function write(call)
  write_records(call)
  for _, known in pairs(call.owners) do
    if known.added > 0 or known.removed > 0 or known.renumbered then settle(call, known) end
  end
  write_indexes(call)
end

-- All that several partitions are to have, when everything is decided and prepared in each of them.
local function write_all(calls)
  local clocks = {}
  for place = 1, #calls do
    local call, size = calls[place], #clocks
    write(call)
    -- Also if it stands still: WAIT after a repeated call waits for what this connection wrote, so it must write.
    clocks[size + 1], clocks[size + 2] = call.clock, format('%.0f', call.now)
    if call.numbered then clocks[size + 3], clocks[size + 4] = call.tag .. 'seq', format('%.0f', call.seq) end
  end
  command('MSET', unpack(clocks))
end

local function flush_all(calls)
  for place = 1, #calls do prepare(calls[place]) end
  write_all(calls)
end

local function flush(call) flush_all({ call }) end

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
  local from, stop = 0, command('ZCOUNT', set, '-inf', last)
  if behind then
    local stands = command('ZSCORE', set, behind[2]) == behind[1]
    from = stands and command('ZRANK', set, behind[2]) + 1 or command('ZCOUNT', set, '-inf', '(' .. behind[1])
  end
  if from >= stop then return {}, false end
  local page = command('ZRANGE', set, from, math.min(from + LOOKS, stop) - 1)
  if from + LOOKS >= stop then return page, false end
  return page, { command('ZSCORE', set, page[#page]), page[#page] }
end

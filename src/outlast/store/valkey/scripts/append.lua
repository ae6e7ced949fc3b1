-- append: frames of an execution's stream, fenced by its holder; a repeated call appends once.
-- arguments: {now or false, owner, status of a holder, epoch, change id}, then the frames
-- answer: {1 or 0, newest frame}

local function append(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, asked[1])
  local stream, seen = call.tag .. 'frames:' .. asked[2], call.tag .. 'appends:' .. asked[2]
  local newest = command('LLEN', stream)
  if command('SISMEMBER', seen, asked[5]) == 1 then
    flush(call)
    return { 1, newest }
  end
  local values = execution_of(call, asked[2]).values
  if not values or values[EXECUTION.status] ~= asked[3] or values[EXECUTION.epoch] ~= asked[4] then
    return { 0, newest }
  end
  for i = 2, #args do command('RPUSH', stream, pack({ call.now, args[i] })) end
  command('SADD', seen, asked[5])
  flush(call)
  return { 1, newest + #args - 1 }
end

offer('append', append)

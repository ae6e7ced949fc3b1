-- renew: keep a worker's session in this partition alive, and say what hangs on it.
-- argument: {now or false, partition as in keys, worker, lease ttl}; answer: {now, {namespace, id, epoch, inbox} ...}
-- held: say only that. argument: {worker}; answer: {{namespace, id, epoch, inbox} ...}

local function leases(call, worker)
  local found = {}
  for i, member in ipairs(command('ZRANGE', call.tag .. 'held:' .. text(worker), 0, -1)) do
    local _, from = first_text(member, 1)
    local values = execution_of(call, sub(member, from)).values
    found[i] = { values[EXECUTION.namespace], values[EXECUTION.id], values[EXECUTION.epoch], values[EXECUTION.inbox] }
  end
  return found
end

local function renew(keys, args)
  local asked = unpacked(args[1])
  local call = begin(keys, asked[1])
  renew_session(call, asked[2], asked[3], asked[4])
  flush(call)
  return { call.now, leases(call, asked[3]) }
end

local function held(keys, args)
  return leases(begin(keys), unpacked(args[1])[1])
end

-- On a full server too: what runs there must not be taken for dead.
offer('renew', renew, 'allow-oom')
offer('held', held, 'no-writes')

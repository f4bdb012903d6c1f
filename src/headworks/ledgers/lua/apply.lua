-- The whole ledger as one script: a mixed list of commands in, their answers out, atomically: `core/book.py`.
--
-- The key is the domain's root; every other key is it and a suffix, so all have its hash tag and its cluster slot.
-- The first argument: the commands. The second: {epoch, run_id, lease_ms, remember_ms, records_max}. Commands are only run in the epoch they
-- were meant for. Without an epoch: open the ledger for the store process that the caller talks to, or join what is open.

local NUMBERS = {
  "now_ms", "sequence", "behind_ms", "order", "sweep_due_ms", "forget_at_ms", "keyed_until_ms", "underflows", "lease_ms",
  "policy_number", "policy_version", "floors",
}
local EMPTY = { 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, "", {} }

local function load(schema, blob)
  if schema and tonumber(schema) ~= LIMIT.SCHEMA then
    return redis.error_reply("HEADWORKS_SCHEMA " .. schema)
  end
  local values = blob and unpacked(blob) or EMPTY
  for at, name in ipairs(NUMBERS) do
    book[name] = values[at]
  end
  return nil
end

local function save(epoch)
  local values = {}
  for at, name in ipairs(NUMBERS) do
    values[at] = book[name]
  end
  for _, one in ipairs(unwritten) do
    one:flush()
  end
  call("HSET", ROOT, "schema", LIMIT.SCHEMA, "epoch", epoch, "book", pack(values))
end

-- The process that knew the gateways is gone: every lease, every seat and every policy's claim is over now.
local function orphan_all()
  for _, boot in ipairs(boots:inorder()) do
    if boot.alive then
      book.sequence = book.sequence + 1
      lapse(boot)
    end
  end
  for _, replica in ipairs(replicas:inorder()) do
    replica.reader, replica.samples = "", {}
    replica:touch()
  end
  book.policy_number, book.policy_version, book.sweep_due_ms = -1, "", 0
end

-- The book's own time goes on from where it was, though the clock stepped back.
local function advance()
  local now_ms = clock_ms()
  if now_ms < book.now_ms or book.behind_ms ~= 0 then
    book.behind_ms = math.max(book.behind_ms, book.now_ms - now_ms)
    now_ms = now_ms + book.behind_ms
  end
  book.now_ms = now_ms
  if now_ms >= book.sweep_due_ms then
    sweep_boots()
  end
  if now_ms >= book.forget_at_ms then
    forget_due()
  end
end

-- The newest policy's limits are everybody's; an older gateway's word changes nothing.
local function set_limits(command)
  local keeps = command.policy_version == book.policy_version
  if command.policy_number < book.policy_number and not keeps then
    return full("refused")
  end
  book.policy_number, book.policy_version = math.max(command.policy_number, book.policy_number), command.policy_version
  counters.set(command.limits, command.floors, command.committed, keeps)
  return full("ok")
end

local function waits(command)
  if not lives_on(command.owner) then
    return full("refused")
  end
  local class, tenant = command.flow[1], command.flow[2]
  open_turns(command.pool):leave_mark(class, tenant, command.owner, command.charges, command.waiting_tokens, false)
  return full("ok")
end

local function unmark(command)
  local turns = find_turns(command.pool)
  if turns then
    turns:unmark(command.flow[1], command.flow[2], command.owner)
  end
  return full("ok")
end

local VERBS = {
  Claim = claim, Reserve = lives.reserve, Start = lives.start, Grow = lives.grow, Cancel = lives.cancel, Stop = lives.stop,
  Adopt = leases.adopt, Reassert = leases.reassert, Heartbeat = leases.heartbeat, Depart = leases.depart, Held = leases.held,
  TakeReader = testimony.take_reader, PutSample = testimony.put_sample, PutIncarnation = testimony.put_incarnation,
  Withdraw = testimony.withdraw, SetLimits = set_limits, Waits = waits, Unmark = unmark,
}

local function read_commands(list)
  local commands, named = {}, {}
  for at, values in ipairs(list) do
    local command = READ[values[1]](values)
    command.verb = values[1]
    commands[at] = command
    if command.execution then
      named[#named + 1] = command.execution
    end
  end
  entries:fetch(named)
  return commands
end

-- Each gateway has a channel of its own; a pool it is to look at again is all that is said.
local function tell_wakes()
  for at = math.max(1, #wakes - LIMIT.WAKES_MAX + 1), #wakes do
    call("SPUBLISH", ROOT .. ":wake:" .. wakes[at][1], wakes[at][2])
  end
end

-- An epoch is one life of the store: its process, and when the ledger was opened for it. A process that was restarted, even
-- with all its data, or promoted, or emptied, begins another, and whoever still talks of the one before is told so.
local function open_for(run_id, epoch, lease_ms)
  if string.sub(epoch, 1, #run_id + 1) ~= run_id .. "@" then
    advance()
    orphan_all()
    book.lease_ms = lease_ms -- whoever has a longer one says so with its first list
    epoch = run_id .. "@" .. string.format("%d", clock_ms()) .. "." .. string.format("%d", book.sequence)
    save(epoch)
  end
  return pack("open", epoch, book.now_ms)
end

local function apply(keys, arguments)
  ARGUMENTS = arguments
  begin(keys[1])
  call("HLEN", ROOT .. ":never") -- while a slot moves, what is missing here is refused: now, and not half way
  local asked = unpacked(arguments[2])
  local kept = call("HMGET", ROOT, "schema", "epoch", "book")
  local refusal = load(kept[1], kept[3])
  if refusal then
    return refusal
  end
  local epoch = kept[2] or ""
  book.remember_ms, book.records_max = asked.remember_ms, asked.records_max
  book.lease_ms = math.max(book.lease_ms, asked.lease_ms)
  if not asked.epoch then
    return open_for(asked.run_id, epoch, asked.lease_ms)
  elseif asked.epoch ~= epoch then
    return pack("changed", epoch)
  end
  advance()
  local first_sequence, answers = book.sequence + 1, {}
  for at, command in ipairs(read_commands(unpacked(arguments[1]))) do
    book.sequence = book.sequence + 1
    answers[at] = VERBS[command.verb](command)
  end
  save(epoch)
  tell_wakes()
  return pack("ok", book.now_ms, first_sequence, answers)
end

redis.register_function(NAME, apply)

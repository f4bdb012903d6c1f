-- The whole ledger as one script: a mixed list of commands in, their answers out, atomically: `core/book.py`.
--
-- The key is the domain's root; every other key is it and a suffix, so all have its hash tag and its cluster slot.
-- The first argument: {epoch, run_id, lease_ms, remember_ms, records_max}; every further one is a command. Commands are only run
-- in the epoch they were meant for. Without an epoch: open the ledger for the store process that the caller talks to, or join
-- what is open.

local NUMBERS = {
  "now_ms", "sequence", "behind_ms", "order", "sweep_due_ms", "forget_at_ms", "keyed_until_ms", "underflows", "lease_ms",
  "policy_number", "policy_version",
}
local EMPTY = { 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, "" }
-- What the same caller says with every call.
local asked_blob, asked

-- False: of another schema.
local function load()
  local kept = call("HMGET", ROOT, "schema", "epoch", "book")
  local schema, epoch, blob = kept[1], kept[2] or "", kept[3] or ""
  if schema and tonumber(schema) ~= LIMIT.SCHEMA then
    return false, schema
  end
  return epoch, blob
end

local function read_book(blob)
  local values = blob == "" and EMPTY or { unpacked(blob) }
  for at, name in ipairs(NUMBERS) do
    book[name] = values[at]
  end
  local floors = call("HGET", ROOT, "floors")
  book.floors = floors and unpacked(floors) or {}
end

local function save(epoch)
  for _, one in ipairs(unwritten) do
    one:flush()
  end
  ended:pass()
  keys:pass()
  local blob = pack(
    book.now_ms, book.sequence, book.behind_ms, book.order, book.sweep_due_ms, book.forget_at_ms, book.keyed_until_ms,
    book.underflows, book.lease_ms, book.policy_number, book.policy_version
  )
  if book.are_floors_new then
    book.are_floors_new = false
    call("HSET", ROOT, "floors", pack(book.floors))
  end
  call("HSET", ROOT, "book", blob)
  put_down(epoch .. "\0" .. blob)
end

-- The process that knew the gateways is gone: every lease, every seat and every policy's claim is over now.
local function orphan_all()
  for _, boot in ipairs(boots:inorder("order")) do
    if boot.alive then
      book.sequence = book.sequence + 1
      lapse(boot)
    end
  end
  for _, replica in ipairs(replicas:inorder("order")) do
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
    sessions.sweep()
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
  book.are_floors_new = true
  return full("ok")
end

local function waits(command)
  if not lives_on(command.owner) then
    return full("refused")
  end
  local shape = shape_of(command.shape)
  open_turns(shape.pool):leave_mark(command.owner, shape, command.amounts, command.waiting_tokens, false)
  return full("ok")
end

local function unmark(command)
  local turns = find_turns(command.pool)
  if turns then
    turns:unmark(command.flow[1], command.flow[2], command.owner)
  end
  return full("ok")
end

-- By what a command begins with.
local VERB = {
  [CODE.Claim] = claim, [CODE.Reserve] = lives.reserve, [CODE.Start] = lives.start, [CODE.Grow] = lives.grow,
  [CODE.Cancel] = lives.cancel, [CODE.Stop] = lives.stop, [CODE.Adopt] = leases.adopt, [CODE.Reassert] = leases.reassert,
  [CODE.Heartbeat] = leases.heartbeat, [CODE.Depart] = leases.depart, [CODE.Held] = leases.held, [CODE.TakeReader] =
  testimony.take_reader, [CODE.PutSample] = testimony.put_sample, [CODE.PutIncarnation] = testimony.put_incarnation,
  [CODE.Withdraw] = testimony.withdraw, [CODE.SetLimits] = set_limits, [CODE.Waits] = waits, [CODE.Unmark] = unmark,
  [CODE.CloseSession] = sessions.close, [CODE.TellSession] = sessions.tell, [CODE.Opening] = lives.reserve,
}

-- All are read before the first is run, so that the executions and keys they speak of are asked for at once.
local function read_commands()
  local commands, named, told_keys = {}, {}, {}
  for at = 2, #ARGUMENTS do
    local blob = ARGUMENTS[at]
    local command = READ[string.byte(blob)](unpacked(blob))
    commands[at - 1] = command
    if command.body then
      command.body = blob
    end
    if command.execution then
      named[#named + 1] = command.execution
    end
    if command.key then
      told_keys[#told_keys + 1] = command.key
    end
  end
  entries.fetch(named)
  if #told_keys > 0 then
    keys:fetch(told_keys)
  end
  return commands
end

local function run_all()
  local commands, answers = read_commands(), {}
  for at, command in ipairs(commands) do
    book.sequence = book.sequence + 1
    answers[at] = VERB[string.byte(ARGUMENTS[at + 1])](command)
  end
  return table.concat(answers)
end

-- Each gateway has a channel of its own, in which it is told whose turn it is. One of before 2026-12 listens at another, and
-- understands no more than the pool.
local function tell_wakes()
  for at = math.max(1, #wakes - LIMIT.WAKES_MAX + 1), #wakes do
    local owner, whose, pool = wakes[at][1], wakes[at][2], wakes[at][3]
    if call("SPUBLISH", ROOT .. ":turn:" .. owner, whose) == 0 then
      call("SPUBLISH", ROOT .. ":wake:" .. owner, pool)
    end
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
    call("HSET", ROOT, "schema", LIMIT.SCHEMA, "epoch", epoch)
    save(epoch)
  end
  return pack("open", epoch, book.now_ms)
end

local function apply(told_keys, arguments)
  ARGUMENTS = arguments
  begin(told_keys[1])
  wakes = {}
  call("HLEN", ROOT .. ":never") -- while a slot moves, what is missing here is refused: now, and not half way
  if arguments[1] ~= asked_blob then
    asked_blob, asked = arguments[1], unpacked(arguments[1])
  end
  local epoch, blob = load()
  if not epoch then
    return redis.error_reply("HEADWORKS_SCHEMA " .. blob)
  elseif asked.epoch and asked.epoch ~= epoch then
    return pack("changed", epoch)
  end
  if take_up(epoch .. "\0" .. blob) then
    read_book(blob)
  else
    live:all() -- asked twice by nobody else: from now on the lists of what is live are here
  end
  book.remember_ms, book.records_max = asked.remember_ms, asked.records_max
  book.lease_ms = math.max(book.lease_ms, asked.lease_ms)
  if not asked.epoch then
    return open_for(asked.run_id, epoch, asked.lease_ms)
  end
  advance()
  local first_sequence = book.sequence + 1
  local answers = run_all()
  save(epoch)
  tell_wakes()
  return pack("ok", book.now_ms, first_sequence) .. answers
end

redis.register_function(NAME, apply)

-- Who is who in the ledger: the book's own numbers, executions, keys, and how long they are remembered:
-- `core/book_records.py`.

local NOTHING = {}

-- What is true of the book as a whole. `load` and `save` in `apply.lua`.
local book
-- (gateway, pool and flow, pool): who is to be told that it is whose turn.
local wakes
local shape_of, make_shape -- in counters.lua

of_domain(function() return {} end, function(one) book = one end)

local function next_order()
  book.order = book.order + 1
  return book.order
end

-- Executions. One that is claimed or charged is live. Its record is what has changed since it was reserved, false if nothing
-- has, before the very words of its `Reserve`; before all that, how many values there are. Of one that has ended only what is
-- asked about later is kept.

local TERMINAL = { COMPLETED = true, FAILED = true, CANCELLED = true, TOMBSTONE = true, STOPPED = true }
local CHARGED = { RESERVED = true, RUNNING = true, CANCELLING = true, ORPHANED = true }
local HEAD_VALUES, BODY_VALUES = 4, 10 -- of a record; of a `Reserve` without its amounts

-- What an entry says where nobody has said anything. Most live and die with a dozen fields of their own, and are small for it.
local ENTRY = { __index = {
  was = "", seen = false, amounts = NOTHING, cost_tokens = 0, incarnation = 0, evidence = "", came = 0, orphaned = 0,
  reserved_ms = 0, started_ms = 0, ended_ms = 0, forget_ms = 0, running_sequence = 0, closing_sequence = 0, closing_ms = 0,
  is_changed = false, waiting_tokens = 0, more = false, slots_tokens = 0,
} }

local function new_entry(execution, state, key, fingerprint, owner)
  return setmetatable({
    execution = execution, state = state, key = key, fingerprint = fingerprint, owner = owner, entered = 0, is_changed = true,
  }, ENTRY)
end

-- A `Reserve` is made as the record of what it asks for, so that a grant needs no second one.
READ[CODE.Reserve] = function(_, execution, key, fingerprint, owner, shape, cost_tokens, waiting_tokens, more, slots_tokens, ...)
  local one = {
    execution = execution, state = "RESERVED", fingerprint = fingerprint, owner = owner, shape = shape,
    cost_tokens = cost_tokens, amounts = { ... }, body = "", came = 0, entered = 0, reserved_ms = 0, evidence = "",
    ended_ms = 0, forget_ms = 0,
  }
  if key then
    one.key = key
  end
  if waiting_tokens ~= 0 or more or slots_tokens ~= 0 then
    one.waiting_tokens, one.more, one.slots_tokens = waiting_tokens, more, slots_tokens
  end
  return setmetatable(one, ENTRY)
end

-- The boot that reserved it is the one that owns it, unless that one was lost.
local function reserved_by(entry)
  return entry.reserved_by or entry.owner
end

-- As `told_reserve` in `valkey_wire.py` writes it.
local function body_of(one)
  return pack(
    CODE.Reserve, one.execution, one.key, one.fingerprint, reserved_by(one), one.shape and one.shape.blob or "",
    one.cost_tokens, 0, false, 0, unpack(one.amounts)
  )
end

local function read_live(blob)
  local function entry_of(_, came, reserved_ms, changes, ...)
    local _, execution, key, fingerprint, owner, shape, cost_tokens = ...
    local one = new_entry(execution, "RESERVED", key, fingerprint, owner)
    one.came, one.entered, one.reserved_ms, one.cost_tokens, one.is_changed = came, came, reserved_ms, cost_tokens, false
    one.shape = shape ~= "" and shape_of(shape) or nil
    one.amounts = { select(BODY_VALUES + 1, ...) }
    if changes then
      one.is_changed = true
      one.state, one.was, one.seen, one.owner, one.entered, one.orphaned, one.started_ms, one.running_sequence,
      one.closing_sequence, one.closing_ms, one.incarnation, one.steps = unpack(changes)
      if one.owner ~= owner then
        one.reserved_by = owner
      end
    end
    return one
  end
  return entry_of(unpacked(blob))
end

local function write_live(one)
  local changes = one.is_changed and {
    one.state, one.was, one.seen, one.owner, one.entered, one.orphaned, one.started_ms, one.running_sequence,
    one.closing_sequence, one.closing_ms, one.incarnation, one.steps,
  }
  if one.body == nil then
    one.body = body_of(one)
  end
  return pack(HEAD_VALUES + BODY_VALUES + #one.amounts, one.came, one.reserved_ms, changes) .. one.body
end

local function read_ended(blob, execution)
  local forget_ms, key, state, fingerprint, owner, usage, evidence, ended_ms = unpacked(blob)
  local one = new_entry(execution, state, key, fingerprint, owner)
  one.forget_ms, one.usage, one.evidence, one.ended_ms = forget_ms, usage, evidence, ended_ms
  return one
end

local function write_ended(one)
  return pack(one.forget_ms, one.key, one.state, one.fingerprint, one.owner, one.usage, one.evidence, one.ended_ms)
end

local function as_written(value)
  return value
end

local live, ended
-- Key → its newest execution.
local keys

of_domain(function() return new_shelf("live", read_live, write_live, LIVING) end, function(one) live = one end)
of_domain(function() return new_shelf("ended", read_ended, write_ended, PASSING) end, function(one) ended = one end)
of_domain(function() return new_shelf("keys", as_written, as_written, PASSING) end, function(one) keys = one end)

local entries = {}

function entries.find(execution)
  return live:find(execution) or ended:find(execution) or nil
end

-- Every one that is asked about, at once.
function entries.fetch(names)
  live:fetch(names)
  local missing, kept = {}, live.kept
  for _, name in ipairs(names) do
    if not kept[name] then
      missing[#missing + 1] = name
    end
  end
  if #missing > 0 then
    ended:fetch(missing)
  end
end

-- It is nowhere yet.
function entries.add(entry)
  live:add(entry.execution, entry)
end

function entries.finish(entry)
  live:drop(entry.execution)
  ended:add(entry.execution, entry)
end

-- Onto the shelf that its state says.
function entries.put(entry)
  local execution = entry.execution
  if TERMINAL[entry.state] then
    live:remove(execution)
    ended:put(execution, entry)
  else
    ended:remove(execution)
    live:put(execution, entry)
  end
end

function entries.remove(execution)
  live:remove(execution)
  ended:remove(execution)
end

function entries.count()
  return live:count() + ended:count()
end

-- It is no longer just what was reserved.
local function touch(entry)
  entry.is_changed = true
  if TERMINAL[entry.state] then
    ended:touch(entry.execution)
  else
    live:touch(entry.execution)
  end
end

-- As others see it.
local function reservation(one)
  local shape = one.shape
  return {
    one.execution, one.key or false, one.fingerprint, one.state, one.was, one.seen, one.owner, reserved_by(one),
    shape and shape.replica or "", one.incarnation, shape and shape.names or NOTHING, one.amounts, one.usage or false,
    one.evidence, one.reserved_ms, one.started_ms, one.ended_ms,
  }
end

-- What a gateway owns, in the order in which it came.
local function owned(owner)
  return live:inorder("came", function(entry) return entry.owner == owner end)
end

local function owns_any(owner)
  for _, entry in pairs(live:all()) do
    if entry and entry.owner == owner then
      return true
    end
  end
  return false
end

-- Charged, and nobody's; the oldest first.
local function orphans()
  return live:inorder("orphaned", function(entry) return entry.state == "ORPHANED" end)
end

-- Gateways' lives.

local function read_boot(blob, owner)
  local boot = { owner = owner }
  boot.order, boot.alive, boot.departed, boot.lease_until_ms, boot.gone_ms, boot.seen_sequence, boot.unvouched, boot.profiles,
  boot.posting = unpacked(blob)
  return boot
end

local function write_boot(boot)
  return pack(
    boot.order, boot.alive, boot.departed, boot.lease_until_ms, boot.gone_ms, boot.seen_sequence, boot.unvouched,
    boot.profiles, boot.posting
  )
end

local boots

of_domain(function() return new_shelf("boots", read_boot, write_boot) end, function(one) boots = one end)

local function lives_on(owner)
  local boot = boots:find(owner)
  return boot and boot.alive
end

-- Answers, as they are sent. A plain one is about one execution and says what its record says: an outcome and a state, of which
-- there are few. It is the longer by two where the record says what the command has just said.

local PLAIN, ECHO = {}, {}

local function short(said, outcome, state, ...)
  local of_state = said[state]
  if not of_state then
    of_state = {}
    said[state] = of_state
  end
  local text = of_state[outcome]
  if not text then
    text = pack({ outcome, state, ... })
    of_state[outcome] = text
  end
  return text
end

local function plain(command, entry, outcome)
  if entry.owner == command.owner then
    if entry.evidence == "" and not entry.usage then
      return short(PLAIN, outcome, entry.state)
    end
    if entry.evidence == command.evidence and entry.usage == command.usage then
      return short(ECHO, outcome, entry.state, true, true)
    end
  end
  return pack({ outcome, entry.state, entry.evidence, entry.usage or false, entry.owner })
end

local function full(outcome, state, more)
  return pack({ outcome, state or "", more or NOTHING })
end

local function answer_of(command, entry, outcome)
  if (command.step or 0) == 0 then
    return plain(command, entry, outcome)
  end
  return full(outcome, entry.state, { usage = entry.usage, evidence = entry.evidence, owner = entry.owner })
end

-- What a command does in a state, by the table.

local acts = {}
local REFUSE = { act = "refuse", outcome = "refused" }

local function go(column, entry, command)
  local move = MOVES[entry and entry.state or ""][column] or REFUSE
  return acts[move.act](entry, command, move)
end

function acts.refuse(entry)
  return full("refused", entry and entry.state)
end

-- Say what is so already.
function acts.record(entry, command, move)
  return answer_of(command, entry, move.outcome)
end

-- Who is who in the ledger: the book's own numbers, executions, keys, and how long they are remembered:
-- `core/book_records.py`.

local NOTHING = {}

-- What is true of the book as a whole. `load` and `save` in `apply.lua`.
local book
-- (gateway, pool) to be told that capacity came free.
local wakes

at_begin[#at_begin + 1] = function()
  book, wakes = {}, {}
end

local function next_order()
  book.order = book.order + 1
  return book.order
end

-- Executions. Of one that has ended only what is asked about later is kept.

local function read_entry(blob, execution)
  local entry = { execution = execution }
  entry.state, entry.key, entry.fingerprint, entry.owner, entry.reserved_by, entry.usage, entry.evidence, entry.forget_ms,
  entry.ended_ms, entry.seen, entry.was, entry.pool, entry.replica, entry.incarnation, entry.charges, entry.flow,
  entry.weights, entry.cost_tokens, entry.steps, entry.reserved_ms, entry.started_ms, entry.running_sequence,
  entry.closing_sequence, entry.closing_ms = unpacked(blob)
  return entry
end

local TERMINAL = { COMPLETED = true, FAILED = true, CANCELLED = true, TOMBSTONE = true, STOPPED = true }
local CHARGED = { RESERVED = true, RUNNING = true, CANCELLING = true, ORPHANED = true }

local function write_entry(one)
  if TERMINAL[one.state] then
    return pack(
      one.state, one.key, one.fingerprint, one.owner, one.reserved_by, one.usage, one.evidence, one.forget_ms, one.ended_ms,
      one.seen
    )
  end
  return pack(
    one.state, one.key, one.fingerprint, one.owner, one.reserved_by, one.usage, one.evidence, one.forget_ms, one.ended_ms,
    one.seen, one.was, one.pool, one.replica, one.incarnation, one.charges, one.flow, one.weights, one.cost_tokens, one.steps,
    one.reserved_ms, one.started_ms, one.running_sequence, one.closing_sequence, one.closing_ms
  )
end

local function as_written(value)
  return value
end

local entries = shelf("entries", read_entry, write_entry)
-- Key → its newest execution.
local keys = shelf("keys", as_written, as_written)
local orphans

at_begin[#at_begin + 1] = function()
  orphans = line("orphans")
end

local function new_entry(execution, state, key, fingerprint, owner)
  return {
    execution = execution, state = state, key = key, fingerprint = fingerprint, owner = owner, reserved_by = owner, was = "",
    seen = false, pool = "", replica = "", incarnation = 0, charges = NOTHING, weights = { 1, 1 }, cost_tokens = 0,
    evidence = "", reserved_ms = 0, started_ms = 0, ended_ms = 0, forget_ms = 0, running_sequence = 0, closing_sequence = 0,
    closing_ms = 0,
  }
end

local function touch(entry)
  entries.changed[entry.execution] = true
end

-- As others see it.
local function reservation(one)
  return {
    one.execution, one.key or false, one.fingerprint, one.state, one.was or "", one.seen, one.owner, one.reserved_by,
    one.replica or "", one.incarnation or 0, one.charges or NOTHING, one.usage or false, one.evidence, one.reserved_ms or 0,
    one.started_ms or 0, one.ended_ms,
  }
end

-- Gateways' lives, and what each owns.

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

local boots = shelf("boots", read_boot, write_boot)

local function owned(owner)
  return line("owned:" .. owner)
end

local function lives_on(owner)
  local boot = boots:find(owner)
  return boot and boot.alive
end

-- Answers: a plain one is about one execution and says what its record says.

local function plain(command, entry, outcome)
  if entry.evidence == "" and not entry.usage and entry.owner == command.owner then
    return { outcome, entry.state }
  end
  return { outcome, entry.state, entry.evidence, entry.usage or false, entry.owner }
end

local function full(outcome, state, more)
  return { outcome, state or "", more or NOTHING }
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

-- Remembering and forgetting: (due, execution) of ended executions without a key, with one, and of tombstones.

local MINTED, KEYED, TOMBSTONES

at_begin[#at_begin + 1] = function()
  MINTED, KEYED, TOMBSTONES = queue("forget:minted"), queue("forget:keyed"), queue("forget:tombstones")
end

local function forget_at(waiting, entry, due_ms)
  entry.forget_ms = due_ms
  touch(entry)
  waiting:push(string.format("%d %s", due_ms, entry.execution))
  if due_ms < book.forget_at_ms then
    book.forget_at_ms = due_ms
  end
end

-- A given key is answered from memory for long, a minted one for a minute.
local function remember(entry)
  if entry.key then
    book.keyed_until_ms = math.max(book.keyed_until_ms, book.now_ms + book.remember_ms)
    forget_at(KEYED, entry, book.keyed_until_ms)
    return
  end
  local due_ms = book.now_ms + LIMIT.MINTED_MS
  forget_at(MINTED, entry, math.ceil(due_ms / LIMIT.MINTED_STEP_MS) * LIMIT.MINTED_STEP_MS)
end

local function free_key(entry)
  if entry.key and keys:find(entry.key) == entry.execution then
    keys:remove(entry.key)
  end
end

local function due_of(text)
  local due_ms, execution = string.match(text, "^(%d+) (.*)$")
  return tonumber(due_ms), execution
end

local function forget_one(text)
  local due_ms, execution = due_of(text)
  local entry = entries:find(execution)
  if entry and entry.forget_ms == due_ms then
    entries:remove(execution)
    free_key(entry)
  end
end

-- The first of a queue, while they are due. True if there may be more.
local function forget_page(waiting)
  local page = waiting:page(0, LIMIT.FORGOTTEN_PAGE - 1)
  local count, due = 0, {}
  for _, text in ipairs(page) do
    local due_ms, execution = due_of(text)
    if due_ms > book.now_ms then
      break
    end
    count = count + 1
    due[count] = execution
  end
  entries:fetch(due)
  for at = 1, count do
    forget_one(page[at])
  end
  waiting:shift(count)
  return count == LIMIT.FORGOTTEN_PAGE
end

-- What is due; of very much only a part, so that nobody waits long for it: the rest is for the next list.
local function forget_due()
  book.forget_at_ms = LIMIT.NEVER_MS
  for _, waiting in ipairs({ MINTED, KEYED, TOMBSTONES }) do
    for _ = 1, LIMIT.FORGOTTEN_PAGES_MAX do
      if not forget_page(waiting) then
        break
      end
    end
    local first = waiting:page(0, 0)[1]
    if first then
      book.forget_at_ms = math.min(book.forget_at_ms, (due_of(first)))
    end
  end
end

-- Room for one more record. When full, what ended longest ago is forgotten early; tombstones never are.
local function room()
  for _, waiting in ipairs({ MINTED, KEYED }) do
    while entries:count() >= book.records_max do
      local first = waiting:page(0, 0)[1]
      if not first then
        break
      end
      forget_one(first)
      waiting:shift(1)
    end
  end
  return entries:count() < book.records_max
end

-- Identity.

-- The newest execution of a key, if it is remembered.
local function newest_of(key)
  local execution = key and keys:find(key)
  return execution and entries:find(execution) or nil
end

-- A new attempt of a key may run once the last one has ended without an answer worth repeating.
local function may_follow(newest, fingerprint)
  return (newest.state == "FAILED" or newest.state == "CANCELLED") and newest.fingerprint == fingerprint
end

-- About the execution that has the key, and to the one that asked for it.
local function claim_answer(command, entry, outcome)
  if not entry then
    return full(outcome, "", { asked = command.execution })
  end
  return full(outcome, entry.state, {
    execution = entry.execution, usage = entry.usage, evidence = entry.evidence, owner = entry.owner, asked = command.execution,
  })
end

-- The key has an execution: whose answer is this claim's answer?
local function taken(command, newest)
  if newest.fingerprint ~= command.fingerprint then
    return claim_answer(command, newest, "conflict")
  end
  if newest.execution == command.execution then
    return claim_answer(command, newest, TERMINAL[newest.state] and "dead" or "claimed")
  end
  return claim_answer(command, newest, newest.state == "COMPLETED" and "replay" or "attach")
end

-- A client-given key belongs to one execution at a time (A6).
local function claim(command)
  if not lives_on(command.owner) then
    return claim_answer(command, nil, "fenced")
  end
  local entry = entries:find(command.execution)
  if entry and entry.key ~= command.key then
    return claim_answer(command, entry, "dead")
  end
  local newest = newest_of(command.key)
  if newest and (newest == entry or not may_follow(newest, command.fingerprint)) then
    return taken(command, newest)
  end
  if entry or not room() then
    return claim_answer(command, entry, "dead")
  end
  entry = new_entry(command.execution, "CLAIMED", command.key, command.fingerprint, command.owner)
  entries:put(command.execution, entry)
  owned(command.owner):add(command.execution, next_order())
  keys:put(command.key, command.execution)
  return claim_answer(command, entry, "claimed")
end

-- The key is free again: refusals are not kept.
local function unclaim(entry)
  owned(entry.owner):remove(entry.execution)
  free_key(entry)
  entry.key = nil
end

-- The life of an execution in the ledger: charged, seen, unwanted, ended: `core/book_lives.py`.

local lives = {}
local open_replica -- in testimony.lua

-- How many sequences of the engine such charges stand for.
local function sequences(charges)
  local most = nil
  for _, charge in ipairs(charges) do
    if charge[2] == "requests" and charge[3] > (most or -1) then
      most = charge[3]
    end
  end
  return most or 1
end

-- Charging.

-- An answer with what the whole fleet has waiting (B2).
local function told(command, turns, outcome, state, shortfalls)
  return full(outcome, state, {
    owner = command.owner, waiting_tokens = turns.waiting_tokens, slots_tokens = turns:slots_tokens(), shortfalls = shortfalls,
  })
end

-- Not now: the flow is remembered as waiting, with this one and what is behind it.
local function not_now(command, turns, outcome, shortfalls)
  local waiting = command.cost_tokens + command.waiting_tokens
  turns:leave_mark(command.flow[1], command.flow[2], command.owner, command.charges, waiting, false)
  return told(command, turns, outcome, "", shortfalls)
end

-- One key, one execution that may run (A6).
local function may_run(entry, command)
  if entry and entry.owner ~= command.owner then
    return false
  end
  local newest = newest_of(command.key)
  if newest and newest ~= entry and not may_follow(newest, command.fingerprint) then
    return false
  end
  return entry or entries:count() < book.records_max or room()
end

-- Write the record of what has just been charged.
local function admit(entry, command, replica)
  local execution = command.execution
  local named = entry or command -- what was claimed stays what it was claimed as
  local made = new_entry(execution, "RESERVED", named.key, named.fingerprint, command.owner)
  made.pool, made.replica, made.flow, made.weights = command.pool, command.replica, command.flow, command.weights
  made.cost_tokens, made.charges, made.reserved_ms = command.cost_tokens, command.charges, book.now_ms
  if not entry then
    owned(command.owner):add(execution, next_order())
  end
  entries:put(execution, made)
  if named.key then
    keys:put(named.key, execution)
  end
  replica:enter(made)
end

-- Another flow's turn; or, for a moment, nobody's there, so that a sample can decide about old work (E3b).
local function whose_turn(command, turns, replica)
  if book.now_ms < replica.yield_until_ms then
    return true, NOTHING
  end
  return turns:must_yield(command.flow[1], command.flow[2], command.owner, command.charges)
end

-- Identity, then every limit, then whose turn it is; then charge every scope, or none.
function acts.charge(entry, command, move)
  if not may_run(entry, command) then
    return full("dead", entry and entry.state)
  end
  local class, tenant = command.flow[1], command.flow[2]
  local turns, replica = open_turns(command.pool), open_replica(command.replica)
  turns:note_slots(command.owner, command.slots_tokens)
  local shortfalls = counters.take(command.charges)
  if #shortfalls > 0 then
    local never = counters.never_fits(command.charges)
    if #never > 0 then
      return told(command, turns, "never", "", never)
    end
    return not_now(command, turns, "refused", shortfalls)
  end
  local passing = NOTHING
  local somebody_first = turns.fresh > 0 and turns:anybody_before(class, tenant, command.owner)
  if somebody_first or book.now_ms < replica.yield_until_ms then
    counters.give(command.charges)
    local must_yield
    must_yield, passing = whose_turn(command, turns, replica)
    if must_yield then
      return not_now(command, turns, "yield", NOTHING)
    end
    counters.take(command.charges)
  end
  admit(entry, command, replica)
  turns:grant(class, tenant, command.weights, command.cost_tokens, passing)
  if command.more then
    turns:leave_mark(class, tenant, command.owner, command.charges, command.waiting_tokens, true)
  elseif turns.fresh + turns.dormant > 0 then
    turns:unmark(class, tenant, command.owner)
  end
  if turns.fresh > 0 or next(turns.slots) then
    return told(command, turns, move.outcome, move.state, NOTHING)
  end
  return { move.outcome, move.state }
end

-- The first grant's answer was lost; it is given again, to nobody else.
function acts.confirm_charge(entry, command, move)
  local outcome = entry.owner == command.owner and move.outcome or "dead"
  return told(command, open_turns(command.pool), outcome, entry.state, NOTHING)
end

-- Authority is fenced: only a boot whose lease runs may charge.
function lives.reserve(command)
  if not lives_on(command.owner) then
    return full("fenced")
  end
  return go("reserve", entries:find(command.execution), command)
end

-- Running.

-- Its prompt has been read: what it held for that alone comes back, to whoever waits for it (B7).
local function has_read(entry)
  local read, kept = {}, {}
  for _, charge in ipairs(entry.charges) do
    local to = READ_UNITS[charge[2]] and read or kept
    to[#to + 1] = charge
  end
  if #read == 0 then
    return
  end
  counters.give(read)
  entry.charges = kept
  local turns = find_turns(entry.pool)
  if turns and turns.fresh > 0 then
    turns:wake()
  end
end

function acts.see(entry, command, move)
  if entry.seen then
    return plain(command, entry, "recorded")
  end
  entry.seen, entry.started_ms = true, book.now_ms
  touch(entry)
  has_read(entry)
  if move.state then
    entry.state, entry.running_sequence = move.state, book.sequence
  elseif entry.was == "RESERVED" then
    entry.was = "RUNNING"
  end
  return plain(command, entry, move.outcome)
end

-- Growth added to the record's charges, one charge for each scope and unit.
local function merged(charges, more)
  local found, at = {}, {}
  for _, list in ipairs({ charges, more }) do
    for _, charge in ipairs(list) do
      local name = charge[2] .. "\0" .. charge[1]
      if at[name] then
        at[name][3] = at[name][3] + charge[3]
      else
        at[name] = { charge[1], charge[2], charge[3] }
        found[#found + 1] = at[name]
      end
    end
  end
  return found
end

local function contains(list, value)
  for _, one in ipairs(list or NOTHING) do
    if one == value then
      return true
    end
  end
  return false
end

-- More, once for each step.
function acts.grow(entry, command, move)
  if command.owner ~= entry.owner then
    return answer_of(command, entry, "fenced")
  end
  if contains(entry.steps, command.step) then
    return answer_of(command, entry, "recorded")
  end
  if #(entry.steps or NOTHING) >= LIMIT.STEPS_MAX then
    return acts.refuse(entry)
  end
  local shortfalls = counters.take(command.charges)
  if #shortfalls > 0 then
    return full("refused", entry.state, { shortfalls = shortfalls })
  end
  entry.steps = entry.steps or {}
  entry.steps[#entry.steps + 1] = command.step
  local replica, before = open_replica(entry.replica), sequences(entry.charges)
  entry.charges = merged(entry.charges, command.charges)
  replica:count(sequences(entry.charges) - before)
  local grown_tokens = nil -- fairness counts plain tokens; memory scopes round them up, so the smallest is nearest
  for _, charge in ipairs(command.charges) do
    if charge[2] == "tokens" then
      grown_tokens = math.min(grown_tokens or charge[3], charge[3])
    end
  end
  grown_tokens = grown_tokens or 0
  if entry.flow and grown_tokens ~= 0 then
    open_turns(entry.pool):correct(entry.flow[1], entry.flow[2], entry.weights, grown_tokens)
  end
  entry.cost_tokens = entry.cost_tokens + grown_tokens
  touch(entry)
  return answer_of(command, entry, move.outcome)
end

-- Ending.

-- Unwanted, and charged until there is evidence (A5).
function acts.close(entry, command, move)
  entry.state, entry.closing_sequence, entry.closing_ms = move.state, book.sequence, book.now_ms
  touch(entry)
  return plain(command, entry, move.outcome)
end

function acts.close_orphan(entry, command, move)
  entry.was = "CANCELLING"
  touch(entry)
  return acts.record(entry, command, move)
end

-- Nothing was charged. It is remembered, so that a reserve that arrives later finds it dead.
function acts.bury(entry, command, move)
  if not entry then
    room()
    entry = new_entry(command.execution, move.state, nil, "", command.owner)
    entries:put(command.execution, entry)
  elseif entry.state == "CLAIMED" then
    unclaim(entry)
  end
  entry.state, entry.ended_ms = move.state, book.now_ms
  if command.evidence then
    entry.evidence, entry.usage = command.evidence, command.usage
  end
  forget_at(TOMBSTONES, entry, book.now_ms + LIMIT.TOMBSTONE_LEASES * book.lease_ms)
  return plain(command, entry, move.outcome)
end

-- E0 only from the boot that reserved, and only while no byte was seen; everything else counts from anyone, but where several
-- engines stand behind one address only what ended in band (E1) says anything.
local function admissible(entry, command)
  if command.evidence == "E0" then
    return command.owner == entry.reserved_by and not entry.seen
  end
  return command.evidence == "operator" or not open_replica(entry.replica).several
end

-- The one edge that frees.
function acts.finish(entry, state, evidence, usage)
  entry.evidence, entry.usage = evidence, usage
  counters.give(entry.charges)
  owned(entry.owner):remove(entry.execution)
  open_replica(entry.replica):left(entry)
  if entry.state == "ORPHANED" then
    orphans:remove(entry.execution)
  end
  entry.state, entry.ended_ms = state, book.now_ms
  remember(entry)
  local turns = find_turns(entry.pool)
  if not turns then
    return
  end
  if entry.flow and (usage or evidence == "E0") then
    local used_tokens = usage and usage.prompt_tokens + usage.output_tokens or 0
    if used_tokens ~= entry.cost_tokens then
      turns:correct(entry.flow[1], entry.flow[2], entry.weights, used_tokens - entry.cost_tokens)
    end
  end
  if turns.fresh > 0 then
    turns:wake()
  end
end

acts["end"] = function(entry, command, move)
  local state = move.ends and move.ends[command["end"]]
  if not state or (command.evidence ~= "E1" and not admissible(entry, command)) then
    return acts.refuse(entry)
  end
  acts.finish(entry, state, command.evidence, command.usage)
  counters.commit(command.commits)
  return plain(command, entry, move.outcome)
end

-- The ledger itself has the evidence.
local function finish_all(found, evidence)
  local ended = {}
  for at, entry in ipairs(found) do
    acts.finish(entry, MOVES[entry.state][STOP_PROVED].ends.failed, evidence, nil)
    ended[at] = reservation(entry)
  end
  return ended
end

function lives.start(command)
  return go("start", entries:find(command.execution), command)
end

function lives.grow(command)
  return go("grow", entries:find(command.execution), command)
end

function lives.cancel(command)
  return go("cancel", entries:find(command.execution), command)
end

function lives.stop(command)
  return go(STOP_VERBS[command.evidence] or STOP_PROVED, entries:find(command.execution), command)
end

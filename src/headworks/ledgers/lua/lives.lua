-- The life of an execution in the ledger: charged, seen, unwanted, ended: `core/book_lives.py`.

local lives = {}
local open_replica -- in testimony.lua

-- Both are there for good, once they are.
local function turns_for(shape)
  if shape.turns then
    return looked_at(shape.turns)
  end
  shape.turns = open_turns(shape.pool)
  return shape.turns
end

local function replica_of(shape)
  if not shape.on then
    shape.on = open_replica(shape.replica)
  end
  return shape.on
end

-- Charging.

-- An answer with what the whole fleet has waiting (B2).
local function told(command, turns, outcome, state, shortfalls, goes_first)
  return full(outcome, state, {
    owner = command.owner, waiting_tokens = turns.waiting_tokens, slots_tokens = turns:slots_tokens(), shortfalls = shortfalls,
    goes_first = goes_first,
  })
end

-- Not now: the flow is remembered as waiting, with this one and what is behind it.
local function not_now(command, turns, outcome, shortfalls, goes_first)
  local waiting = command.cost_tokens + command.waiting_tokens
  turns:leave_mark(command.owner, command.shape, command.amounts, waiting, false)
  return told(command, turns, outcome, "", shortfalls, goes_first)
end

-- It is the turn of another flow, whose gateway need not know: if it is the asker's own, the answer says so.
local function go_after(command, turns, before)
  local mark, goes_first = before[1], nil
  if mark and mark.owner == command.owner then
    goes_first = { mark.class, mark.tenant }
  elseif mark and mark.woken_ms == 0 then
    turns:tell(mark)
  end
  return not_now(command, turns, "yield", NOTHING, goes_first)
end

-- One key, one execution that may run (A6).
local function may_run(entry, command)
  if not entry and not command.key and entries.count() < book.records_max then
    return true
  end
  if entry and entry.owner ~= command.owner then
    return false
  end
  local newest = newest_of(command.key)
  if newest and newest ~= entry and not may_follow(newest, command.fingerprint) then
    return false
  end
  return entry or entries.count() < book.records_max or room()
end

-- What was asked is now the record of what has just been charged.
local function admit(former, entry, replica)
  entry.entered, entry.reserved_ms = next_order(), book.now_ms
  entry.came = entry.entered
  if former then -- what was claimed stays what it was claimed as
    entry.came, entry.key, entry.fingerprint = former.came, former.key, former.fingerprint
    entry.is_changed, entry.body = true, nil
    entries.put(entry)
  else
    entries.add(entry)
  end
  if entry.key then
    keys:put(entry.key, entry.execution)
  end
  replica:count(sequences(entry.shape, entry.amounts))
end

-- Another flow's turn; or, for a moment, nobody's there, so that a sample can decide about old work (E3b).
local function whose_turn(command, turns, replica)
  if book.now_ms < replica.yield_until_ms then
    return true, NOTHING
  end
  return turns:must_yield(command.owner, command.shape)
end

-- A call of a session: what the session holds becomes its own, whoever's turn it is.
local function charge_inside(former, command, move, turns, replica)
  local shape, amounts, session = command.shape, command.amounts, sessions.of(command.shape)
  if session and session.shape.pool ~= shape.pool then
    session = nil
  end
  local short_of = sessions.lacks(session, shape, amounts[1])
  if short_of then
    return told(command, turns, amounts[1] > short_of[4] and "never" or "refused", "", { short_of })
  elseif book.now_ms < replica.yield_until_ms then
    return told(command, turns, "yield", "", NOTHING)
  end
  local lacking = sessions.take(session, shape, amounts)
  if #lacking > 0 then
    local never = sessions.beyond(session, counters.never_fits(shape, amounts))
    return told(command, turns, #never > 0 and "never" or "refused", "", #never > 0 and never or lacking)
  end
  admit(former, command, replica)
  return told(command, turns, move.outcome, move.state, NOTHING)
end

-- Identity, then every limit, then whose turn it is; then charge every scope, or none. The command is read as a new record.
function acts.charge(entry, command, move)
  if not may_run(entry, command) then
    return full("dead", entry and entry.state)
  end
  local shape, amounts = shape_of(command.shape), command.amounts
  command.shape = shape
  local turns, replica = turns_for(shape), replica_of(shape)
  if command.slots_tokens ~= 0 or next(turns.slots) then
    turns:note_slots(command.owner, command.slots_tokens)
  end
  local opens = command.opens
  if shape.session then
    return charge_inside(entry, command, move, turns, replica)
  end
  local refusal = opens and sessions.cannot_open(command)
  if refusal then
    return refusal
  end
  local inside = counters.inside(shape, amounts)
  local shortfalls = counters.take(shape, amounts)
  if #shortfalls > 0 then
    local never = counters.never_fits(shape, amounts)
    if #never > 0 then
      return told(command, turns, "never", "", never)
    end
    if inside and counters.owes(shortfalls) then -- what was kept for it is lent: what comes free is its own (B11)
      turns.owed_until_ms = book.now_ms + LIMIT.MARK_MS
      turns:touch()
    end
    return not_now(command, turns, "refused", shortfalls)
  end
  local passing = NOTHING
  if book.now_ms < turns.owed_until_ms and not inside then
    counters.give(shape, amounts)
    return not_now(command, turns, "yield", NOTHING)
  end
  -- What is kept for it is nobody else's, so nobody's turn is taken by it.
  local somebody_first = turns.fresh > 0 and not inside and turns:anybody_before(shape.class, shape.tenant, command.owner)
  if somebody_first or book.now_ms < replica.yield_until_ms then
    counters.give(shape, amounts)
    local must_yield
    must_yield, passing = whose_turn(command, turns, replica)
    if must_yield then
      return go_after(command, turns, passing)
    end
    counters.take(shape, amounts)
  end
  local opened = opens and sessions.open(command)
  if not opened then
    admit(entry, command, replica)
  end
  turns:grant(shape, opened and amounts[1] or command.cost_tokens, passing)
  if command.more then
    turns:leave_mark(command.owner, shape, amounts, command.waiting_tokens, true)
  elseif turns.fresh + turns.dormant > 0 then
    turns:unmark(shape.class, shape.tenant, command.owner)
  end
  if opened then
    return opened
  elseif turns.fresh > 0 or next(turns.slots) then
    return told(command, turns, move.outcome, move.state, NOTHING)
  end
  return short(PLAIN, move.outcome, move.state)
end

-- The first grant's answer was lost; it is given again, to nobody else.
function acts.confirm_charge(entry, command, move)
  local outcome = entry.owner == command.owner and move.outcome or "dead"
  return told(command, open_turns(shape_of(command.shape).pool), outcome, entry.state, NOTHING)
end

-- Authority is fenced: only a boot whose lease runs may charge.
function lives.reserve(command)
  if not lives_on(command.owner) then
    return full("fenced")
  end
  return go("reserve", entries.find(command.execution), command)
end

-- Running.

-- Its prompt has been read: what it held for that alone comes back, to whoever waits for it (B7).
local function has_read(entry)
  local shape, read, kept = entry.shape, {}, {}
  if not shape.reads then
    return
  end
  local read_names, kept_names = {}, {}
  for at, counter in ipairs(shape.counters) do
    local names, amounts = kept_names, kept
    if counter.is_read then
      names, amounts = read_names, read
    end
    names[#names + 1], amounts[#amounts + 1] = counter.name, entry.amounts[at]
  end
  counters.give(make_shape(shape, read_names), read)
  entry.shape, entry.amounts, entry.body = make_shape(shape, kept_names), kept, nil
  local turns = find_turns(shape.pool)
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
local function merge(entry, shape, amounts)
  local names, sums, at = {}, {}, {}
  for _, list in ipairs({ { entry.shape, entry.amounts }, { shape, amounts } }) do
    for place, name in ipairs(list[1].names) do
      if not at[name] then
        names[#names + 1] = name
        at[name] = #names
      end
      sums[at[name]] = (sums[at[name]] or 0) + list[2][place]
    end
  end
  entry.shape, entry.amounts, entry.body = make_shape(entry.shape, names), sums, nil
end

-- What its owner knows to hold for it and an older copy of this store does not: charged as told, whatever the limits. What was
-- held for the reading of its prompt is not: it may have come back.
function lives.charge_told(entry, told)
  local shape, names, left, more, amounts = shape_of(told.shape), {}, {}, {}, {}
  for at, counter in ipairs(shape.counters) do
    local name = shape.names[at]
    if not counter.is_read then
      names[#names + 1] = not left[name] and name or nil
      left[name] = (left[name] or 0) + told.amounts[at]
    end
  end
  for at, name in ipairs(entry.shape.names) do
    left[name] = left[name] and left[name] - entry.amounts[at]
  end
  for _, name in ipairs(names) do
    if left[name] > 0 then
      more[#more + 1], amounts[#amounts + 1] = name, left[name]
    end
  end
  if #more == 0 then
    return
  end
  local added, replica, before = make_shape(shape, more), open_replica(entry.shape.replica), sequences(entry.shape, entry.amounts)
  counters.force(added, amounts)
  merge(entry, added, amounts)
  replica:count(sequences(entry.shape, entry.amounts) - before)
  sessions.forced(entry.shape)
  touch(entry)
end

local function contains(list, value)
  for _, one in ipairs(list or NOTHING) do
    if one == value then
      return true
    end
  end
  return false
end

-- Fairness counts plain tokens; memory scopes round them up, so the smallest is nearest.
local function plain_tokens(shape, amounts)
  local least = nil
  for at, counter in ipairs(shape.counters) do
    if counter.unit == "tokens" then
      least = math.min(least or amounts[at], amounts[at])
    end
  end
  return least or 0
end

-- More, once for each step.
function acts.grow(entry, command, move)
  if command.owner ~= entry.owner then
    return answer_of(command, entry, "fenced")
  end
  if contains(entry.steps, command.step) then
    return answer_of(command, entry, "recorded")
  end
  local shape, amounts = shape_of(command.shape), command.amounts
  local is_foreign = shape.session and shape.session ~= entry.shape.session
  if #(entry.steps or NOTHING) >= LIMIT.STEPS_MAX or is_foreign then
    return acts.refuse(entry)
  end
  local session = sessions.of(shape)
  local shortfalls = session and sessions.take(session, shape, amounts) or counters.take(shape, amounts)
  if #shortfalls > 0 then
    return full("refused", entry.state, { shortfalls = shortfalls })
  end
  entry.steps = entry.steps or {}
  entry.steps[#entry.steps + 1] = command.step
  local replica, before_count = open_replica(entry.shape.replica), sequences(entry.shape, entry.amounts)
  merge(entry, shape, amounts)
  replica:count(sequences(entry.shape, entry.amounts) - before_count)
  local grown_tokens = plain_tokens(shape, amounts)
  if entry.shape.class and grown_tokens ~= 0 then
    open_turns(entry.shape.pool):correct(entry.shape, grown_tokens)
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
  elseif entry.state == "CLAIMED" then
    unclaim(entry)
  end
  entry.state, entry.ended_ms = move.state, book.now_ms
  if command.evidence then
    entry.evidence, entry.usage = command.evidence, command.usage
  end
  entries.put(entry)
  forget_at(TOMBSTONES, entry, book.now_ms + LIMIT.TOMBSTONE_LEASES * book.lease_ms)
  return plain(command, entry, move.outcome)
end

-- E0 only from the boot that reserved, and only while no byte was seen; everything else counts from anyone, but where several
-- engines stand behind one address only what ended in band (E1) says anything.
local function admissible(entry, command)
  if command.evidence == "E0" then
    return command.owner == reserved_by(entry) and not entry.seen
  end
  return command.evidence == "operator" or not open_replica(entry.shape.replica).several
end

-- The one edge that frees.
function acts.finish(entry, state, evidence, usage, used_tokens)
  local shape = entry.shape
  entry.evidence, entry.usage = evidence, usage
  counters.give(shape, entry.amounts)
  if shape.session then
    sessions.spend(entry, usage, used_tokens)
  end
  replica_of(shape):left(entry)
  entry.state, entry.ended_ms = state, book.now_ms
  entries.finish(entry)
  remember(entry)
  local turns = shape.turns and looked_at(shape.turns) or find_turns(shape.pool)
  if not turns then
    return
  end
  if shape.class and (usage or evidence == "E0") and used_tokens ~= entry.cost_tokens then
    turns:correct(shape, used_tokens - entry.cost_tokens)
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
  acts.finish(entry, state, command.evidence, command.usage, command.used_tokens)
  if command.commits then
    counters.commit(command.commits)
  end
  return plain(command, entry, move.outcome)
end

-- The ledger itself has the evidence.
local function finish_all(found, evidence)
  local ended_now = {}
  for at, entry in ipairs(found) do
    acts.finish(entry, MOVES[entry.state][STOP_PROVED].ends.failed, evidence, nil, 0)
    ended_now[at] = reservation(entry)
  end
  return ended_now
end

function lives.start(command)
  return go("start", entries.find(command.execution), command)
end

function lives.grow(command)
  return go("grow", entries.find(command.execution), command)
end

function lives.cancel(command)
  return go("cancel", entries.find(command.execution), command)
end

function lives.stop(command)
  return go(STOP_VERBS[command.evidence] or STOP_PROVED, entries.find(command.execution), command)
end

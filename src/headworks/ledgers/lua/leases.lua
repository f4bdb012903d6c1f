-- Leases: who watches over what, and what becomes of it when nobody does: `core/book_leases.py`.

local leases = {}

local lapses = {}

function lapses.orphan(entry)
  entry.was, entry.state = entry.state, "ORPHANED"
  if entry.closing_sequence == 0 then
    entry.closing_sequence = book.sequence
  end
  entry.closing_ms, entry.orphaned = book.now_ms, next_order()
  touch(entry)
end

-- A claim whose owner is gone was never charged.
function lapses.forget(entry)
  unclaim(entry)
  entries.remove(entry.execution)
end

-- Nobody is known to watch over its executions any more. They stay charged (A7).
local function lapse(boot)
  boot.alive, boot.gone_ms = false, book.now_ms
  boots:put(boot.owner, boot)
  for _, entry in ipairs(owned(boot.owner)) do
    local move = MOVES[entry.state].lapse
    if move then
      lapses[move.act](entry)
    end
  end
  for name, pool in pairs(pools:all()) do
    if pool then
      open_turns(name):forget(boot.owner)
    end
  end
end

-- Lapse whoever has not renewed, forget whoever is long gone and owns nothing.
local function sweep_boots()
  book.sweep_due_ms = LIMIT.NEVER_MS
  for _, boot in ipairs(boots:inorder("order")) do
    if boot.alive and book.now_ms >= boot.lease_until_ms then
      book.sequence = book.sequence + 1
      lapse(boot)
    end
    local due_ms = boot.lease_until_ms
    if not boot.alive then
      due_ms = boot.gone_ms + LIMIT.TOMBSTONE_LEASES * book.lease_ms
      if owns_any(boot.owner) then
        due_ms = LIMIT.NEVER_MS
      elseif book.now_ms >= due_ms then
        boots:remove(boot.owner)
        due_ms = LIMIT.NEVER_MS
      end
    end
    book.sweep_due_ms = math.min(book.sweep_due_ms, due_ms)
  end
end

local function added(one, other)
  local sum = {}
  for at, here in ipairs(one) do
    sum[at] = here + other[at]
  end
  return sum
end

-- What the others have on each replica. Of one that is gone its last word counts as long as anything of it is held.
local function profiles_beside(asking, all)
  local sums, places = {}, {}
  for _, boot in ipairs(all) do
    local counts_still = boot ~= asking and #boot.profiles > 0 and (boot.alive or owns_any(boot.owner))
    for _, one in ipairs(counts_still and boot.profiles or NOTHING) do
      local place = places[one[1]]
      if place then
        sums[place][2] = added(sums[place][2], one[2])
      else
        sums[#sums + 1] = { one[1], one[2] }
        places[one[1]] = #sums
      end
    end
  end
  return sums
end

-- The boot lives; what it vouches for may decide a waiting sample.
function leases.heartbeat(command)
  local boot = boots:find(command.owner)
  if not boot then
    if boots:count() >= LIMIT.BOOTS_MAX then
      return full("refused")
    end
    boot = {
      owner = command.owner, order = next_order(), departed = false, gone_ms = 0, seen_sequence = 0, unvouched = {},
    }
  end
  if boot.departed then
    return full("refused")
  end
  boot.alive, boot.lease_until_ms = true, book.now_ms + book.lease_ms
  book.sweep_due_ms = math.min(book.sweep_due_ms, boot.lease_until_ms)
  if command.seen_sequence >= boot.seen_sequence then
    boot.seen_sequence, boot.unvouched = command.seen_sequence, command.unvouched
  end
  boot.profiles, boot.posting = command.profiles, command.posting
  boots:put(command.owner, boot)
  local ended, alarms, owners = {}, {}, {}
  judge_all(ended, alarms)
  local all = boots:inorder("order")
  for _, one in ipairs(all) do
    if one.alive and not one.posting then
      owners[#owners + 1] = one.owner
    end
  end
  return full("ok", "", {
    owners = owners, records = ended, alarms = alarms, profiles = profiles_beside(boot, all), sessions = sessions.open_ones(),
  })
end

function leases.depart(command)
  local boot = boots:find(command.owner)
  if boot and not boot.departed then
    boot.departed = true
    lapse(boot)
    book.sweep_due_ms = math.min(book.sweep_due_ms, book.now_ms + LIMIT.TOMBSTONE_LEASES * book.lease_ms)
  end
  return full("ok")
end

local function take_over(entry, owner)
  entry.reserved_by = reserved_by(entry)
  entry.state, entry.was, entry.owner = MOVES.ORPHANED.adopt.state, "", owner
  entry.came = next_order()
  touch(entry)
end

-- Oldest orphans first; not those whose owner is back and may yet take them back itself.
function leases.adopt(command)
  if not lives_on(command.owner) then
    return full("refused")
  end
  local most, records = math.min(command.most, LIMIT.ADOPT_MAX), {}
  for _, entry in ipairs(orphans()) do
    if #records < most and not lives_on(entry.owner) then
      take_over(entry, command.owner)
      records[#records + 1] = reservation(entry)
    end
  end
  return full("ok", "", { records = records })
end

-- A living owner tells its execution again.
function leases.reassert(command)
  if not lives_on(command.owner) then
    return full("fenced")
  end
  return go("reassert", entries.find(command.execution), command)
end

function acts.confirm(entry, command, move)
  if entry.owner ~= command.owner then
    return plain(command, entry, "refused")
  end
  if CHARGED[entry.state] then
    lives.charge_told(entry, command.record)
  end
  return plain(command, entry, move.outcome)
end

-- What the ledger knows to have ended cannot be live again.
function acts.confirm_end(entry, command, move)
  return plain(command, entry, TERMINAL[command.record.state] and move.outcome or "refused")
end

function acts.take_back(entry, command, move)
  if entry.owner ~= command.owner then
    return plain(command, entry, "refused")
  end
  entry.state = command.record.state == "CANCELLING" and "CANCELLING" or entry.was
  entry.was = ""
  if entry.state ~= "CANCELLING" then
    entry.closing_sequence, entry.closing_ms = 0, 0
  end
  if entry.state == "RUNNING" then
    entry.running_sequence = book.sequence
  end
  lives.charge_told(entry, command.record)
  touch(entry)
  return plain(command, entry, move.outcome)
end

local function retold(told, state)
  local entry = new_entry(told.execution, state, told.key, told.fingerprint, told.owner)
  entry.reserved_by, entry.seen, entry.shape, entry.amounts = told.reserved_by, told.seen, shape_of(told.shape), told.amounts
  entry.reserved_ms, entry.started_ms, entry.ended_ms = told.reserved_ms, told.started_ms, told.ended_ms
  return entry
end

-- The ledger forgot, or never heard: what runs is charged as told, above the limits if it must be.
function acts.believe(former, command, move)
  local told = command.record
  local state = told.state
  if state == "ORPHANED" then
    state = told.was ~= "" and told.was or "RUNNING"
  end
  if former then -- its cancel came first
    if not CHARGED[state] then
      return plain(command, former, "recorded")
    end
    state = "CANCELLING"
  end
  local entry = retold(told, state)
  if TERMINAL[state] then
    entry.usage, entry.evidence = told.usage, told.evidence
  else
    entry.came = next_order()
    entry.entered = entry.came
  end
  entries.put(entry)
  local newest = newest_of(told.key)
  if told.key and (not newest or TERMINAL[newest.state]) then
    keys:put(told.key, told.execution)
  end
  if TERMINAL[state] then
    remember(entry)
    return plain(command, entry, move.outcome)
  end
  if CHARGED[state] then
    counters.force(entry.shape, entry.amounts)
    sessions.forced(entry.shape)
    open_replica(entry.shape.replica):count(sequences(entry.shape, entry.amounts))
  end
  if state == "RUNNING" then
    entry.running_sequence = book.sequence
  elseif state == "CANCELLING" then
    entry.closing_sequence, entry.closing_ms = book.sequence, book.now_ms
  end
  return plain(command, entry, move.outcome)
end

function leases.held(command)
  local records, owner, part = {}, command.owner, command.part
  local function is_listed(entry)
    return entry.owner == owner and (part == "" or string.sub(entry.execution, 1, #part) == part)
  end
  for at, entry in ipairs(live:inorder("came", is_listed)) do
    records[at] = reservation(entry)
  end
  return full("ok", "", { records = records })
end

-- Budgets held for a series of calls: `core/book_sessions.py`, where the sums are explained.
--
-- What a session holds is charged to the counters of its shape. A call of it says so in its own: there the session's scope is
-- the first.

local sessions = {}

-- A session that opens comes as more than a `Reserve`, though it is one.
READ[CODE.Opening] = function(_, execution, owner, session, lasts_ms, idle_ms, shape, cost_tokens, waiting_tokens, more, slots, ...)
  return {
    execution = execution, owner = owner, session = session, opens = { lasts_ms, idle_ms }, shape = shape, cost_tokens = cost_tokens,
    waiting_tokens = waiting_tokens, more = more, slots_tokens = slots, amounts = { ... },
  }
end

READ[CODE.TellSession] = function(_, scope, shape, tokens, spent_tokens, idle_ms, left_ms)
  return {
    scope = scope, shape = shape, tokens = tokens, spent_tokens = spent_tokens, idle_ms = idle_ms, left_ms = left_ms,
  }
end

local function read_session(blob, scope)
  local one = { scope = scope }
  one.order, one.shape, one.tokens, one.spent_tokens, one.unspent_tokens, one.returned_tokens, one.ended, one.idle_ms,
  one.idle_until_ms, one.until_ms, one.forget_ms = unpacked(blob)
  one.shape = shape_of(one.shape)
  return one
end

local function write_session(one)
  return pack(
    one.order, one.shape.blob, one.tokens, one.spent_tokens, one.unspent_tokens, one.returned_tokens, one.ended, one.idle_ms,
    one.idle_until_ms, one.until_ms, one.forget_ms
  )
end

local session_shelf

of_domain(function() return new_shelf("sessions", read_session, write_session, LIVING) end, function(one) session_shelf = one end)

function sessions.live_tokens(session)
  return counters.of(session.scope, "tokens").held
end

-- As others see it.
function sessions.told(one)
  local shape, scopes = one.shape, {}
  for at, counter in ipairs(shape.counters) do
    scopes[at] = counter.scope
  end
  return {
    scope = one.scope, pool = shape.pool, flow = { shape.class, shape.tenant }, weights = { shape.class_weight, shape.tenant_weight },
    scopes = scopes, tokens = one.tokens, spent_tokens = one.spent_tokens, live_tokens = sessions.live_tokens(one),
    unspent_tokens = one.unspent_tokens, returned_tokens = one.returned_tokens, ended = one.ended, idle_ms = one.idle_ms,
    idle_left_ms = math.max(0, one.idle_until_ms - book.now_ms), left_ms = math.max(0, one.until_ms - book.now_ms),
  }
end

function sessions.open_ones()
  local found = session_shelf:inorder("order", function(one) return one.ended == "" end)
  for at, session in ipairs(found) do
    found[at] = sessions.told(session)
  end
  return found
end

-- Hold so much more, or less, whatever the limits: who holds it has been asked about them.
function sessions.move(session, amount)
  for _, counter in ipairs(session.shape.counters) do
    hold(counter, amount)
    if counter.held > counter.limit then
      counter.excess = math.max(counter.excess, counter.held)
    elseif counter.held < 0 then
      book.underflows = book.underflows + 1
    end
  end
end

-- From now on it may be idle for its time.
function sessions.used(session)
  session.idle_until_ms = book.now_ms + session.idle_ms
  book.sweep_due_ms = math.min(book.sweep_due_ms, session.idle_until_ms, session.until_ms)
  session_shelf:touch(session.scope)
end

-- Hold what follows from what is spent and live.
function sessions.hold_unspent(session)
  local unspent_tokens = math.max(0, session.tokens - session.spent_tokens - sessions.live_tokens(session))
  sessions.move(session, unspent_tokens - session.unspent_tokens)
  session.unspent_tokens = unspent_tokens
  session_shelf:touch(session.scope)
end

-- Opening.

-- Why this session is not to be opened now; nothing if it may be.
function sessions.cannot_open(command)
  local session = session_shelf:find(command.session)
  if session then
    return full(session.ended ~= "" and "dead" or "opened", "", { sessions = { sessions.told(session) } })
  end
  local tenant, own = command.shape.tenant, 0
  for _, one in pairs(session_shelf:all()) do
    own = own + (one and one.shape.tenant == tenant and 1 or 0)
  end
  local room = math.floor((LIMIT.SESSIONS_MAX - (session_shelf:count() - own) + 1) / 2)
  if own >= room then
    local short_of = { "sessions:" .. command.shape.pool, "sessions", own + 1, room }
    return full("refused", "", { shortfalls = { short_of } })
  end
  return nil
end

function sessions.new(scope, shape, tokens, idle_ms, until_ms)
  local session = {
    scope = scope, order = next_order(), shape = shape, tokens = tokens, spent_tokens = 0, unspent_tokens = 0,
    returned_tokens = 0, ended = "", idle_ms = idle_ms, idle_until_ms = 0, until_ms = until_ms, forget_ms = 0,
  }
  session_shelf:put(scope, session)
  sessions.used(session)
  return session
end

-- Its budget has just been charged.
function sessions.open(command)
  local lasts_ms, idle_ms = command.opens[1], command.opens[2]
  local session = sessions.new(command.session, command.shape, command.amounts[1], idle_ms, book.now_ms + lasts_ms)
  session.unspent_tokens = session.tokens
  sessions.hold_unspent(session) -- a name that is used again may have calls that run
  return full("opened", "", { sessions = { sessions.told(session) } })
end

-- The ledger forgot it, or has an older copy: what is spent stays spent, and the rest is held again.
function sessions.tell(told)
  local session, outcome = session_shelf:find(told.scope), "recorded"
  if not session then
    outcome = "ok"
    session = sessions.new(told.scope, shape_of(told.shape), told.tokens, told.idle_ms, book.now_ms + told.left_ms)
  end
  if session.ended == "" then
    session.spent_tokens = math.min(session.tokens, math.max(session.spent_tokens, told.spent_tokens))
    sessions.hold_unspent(session)
  end
  return full(outcome, "", { sessions = { sessions.told(session) } })
end

-- Its calls.

-- The session that such charges are a call of, while it is open.
function sessions.of(shape)
  local session = shape.session and session_shelf:find(shape.session)
  return session and session.ended == "" and session or nil
end

-- What the session of this call cannot give it, all in all or now.
function sessions.lacks(session, shape, amount)
  if not session then
    return { shape.session, "tokens", amount, 0 }
  elseif amount <= session.unspent_tokens then
    return nil
  end
  return { shape.session, "tokens", sessions.live_tokens(session) + amount, session.tokens - session.spent_tokens }
end

-- Those that concern a call: where its session holds tokens it adds none, however far a limit has fallen since.
function sessions.beyond(session, shortfalls)
  local found = {}
  for _, short_of in ipairs(shortfalls) do
    if not stands_on(session.shape, short_of[2] .. "\0" .. short_of[1]) then
      found[#found + 1] = short_of
    end
  end
  return found
end

-- What the session held for it is the call's now; or nothing has changed, and this is lacking.
function sessions.take(session, shape, amounts)
  local amount = amounts[1]
  local short_of = sessions.lacks(session, shape, amount)
  if short_of then
    return { short_of }
  end
  sessions.move(session, -amount)
  local shortfalls = counters.take(shape, amounts)
  local beyond = sessions.beyond(session, shortfalls)
  if #beyond > 0 then
    sessions.move(session, amount)
    return beyond
  elseif #shortfalls > 0 then
    counters.force(shape, amounts)
  end
  session.unspent_tokens = session.unspent_tokens - amount
  sessions.used(session)
  return NOTHING
end

-- A call was charged that the session was not asked about.
function sessions.forced(shape)
  local session = sessions.of(shape)
  if session then
    sessions.hold_unspent(session)
  end
end

-- Ending.

-- What it did not spend comes back, once, to whoever waits for it.
function sessions.finish(session, why)
  session.ended, session.returned_tokens, session.unspent_tokens = why, session.unspent_tokens, 0
  session.forget_ms = book.now_ms + LIMIT.TOMBSTONE_LEASES * book.lease_ms
  book.sweep_due_ms = math.min(book.sweep_due_ms, session.forget_ms)
  session_shelf:touch(session.scope)
  sessions.move(session, -session.returned_tokens)
  local turns = find_turns(session.shape.pool)
  if turns then
    local class = session.shape.class
    turns.classes:know(class)
    if turns.classes.finish[class] then -- of a class that never had a turn here there is nothing to correct
      turns:correct(session.shape, -session.returned_tokens)
    end
    if turns.fresh > 0 then
      turns:wake()
    end
  end
end

-- A call has ended and given back what it held: all of it was used if nobody can say, and nothing if it showed no byte either.
function sessions.spend(entry, usage, used_tokens)
  local session = sessions.of(entry.shape)
  if not session then
    return
  end
  if not usage then
    used_tokens = entry.seen and entry.amounts[1] or 0
  end
  local most_tokens = math.max(session.spent_tokens, session.tokens - sessions.live_tokens(session))
  session.spent_tokens = math.min(session.spent_tokens + used_tokens, most_tokens)
  sessions.used(session)
  sessions.hold_unspent(session)
  if session.spent_tokens >= session.tokens then
    sessions.finish(session, "exhausted")
  end
end

function sessions.close(command)
  local session = session_shelf:find(command.session)
  if not session then
    return full("refused", "", { asked = command.session })
  end
  local outcome = "recorded"
  if session.ended == "" then
    outcome = "ok"
    sessions.finish(session, "closed")
  end
  return full(outcome, "", { asked = command.session, sessions = { sessions.told(session) } })
end

-- End whoever is over or idle, forget whoever ended long ago.
function sessions.sweep()
  for _, session in ipairs(session_shelf:inorder("order")) do
    if session.ended ~= "" then
      if book.now_ms >= session.forget_ms then
        session_shelf:drop(session.scope)
      end
    elseif book.now_ms >= session.until_ms then
      sessions.finish(session, "deadline")
    elseif book.now_ms >= session.idle_until_ms then
      if sessions.live_tokens(session) > 0 then
        session.idle_until_ms = book.now_ms + session.idle_ms
        session_shelf:touch(session.scope)
      else
        sessions.finish(session, "idle")
      end
    end
    local due_ms = session.ended == "" and math.min(session.until_ms, session.idle_until_ms) or session.forget_ms
    if due_ms > book.now_ms then
      book.sweep_due_ms = math.min(book.sweep_due_ms, due_ms)
    end
  end
end

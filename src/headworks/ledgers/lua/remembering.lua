-- How long what has ended is remembered, and whose a client-given key is: `core/book_records.py`.

-- Ended executions without a key, with one, and tombstones: in the order in which they are forgotten. An element is a time and
-- the executions that are forgotten then.

local Forgetting = { push = Queue.push, page = Queue.page, shift = Queue.shift }
Forgetting.__index = Forgetting

local function new_forgetting(name)
  return setmetatable(new_queue("forget:" .. name), Forgetting)
end

local MINTED, KEYED, TOMBSTONES

of_domain(function() return new_forgetting("minted") end, function(one) MINTED = one end)
of_domain(function() return new_forgetting("keyed") end, function(one) KEYED = one end)
of_domain(function() return new_forgetting("tombstones") end, function(one) TOMBSTONES = one end)

local function forget_at(waiting, entry, due_ms)
  entry.forget_ms = due_ms
  ended:touch(entry.execution)
  local pending = waiting.pending
  if pending[1] ~= due_ms then -- all of one call have one time, but for a clock that has been set
    if #pending > 0 then
      waiting:flush()
      pending = waiting.pending
    end
    waiting:push(due_ms)
  end
  pending[#pending + 1] = entry.execution
  if due_ms < book.forget_at_ms then
    book.forget_at_ms = due_ms
  end
end

function Forgetting:flush()
  local pending = self.pending
  self.pending, self.is_unwritten = {}, false
  for first = 2, #pending, LIMIT.QUEUED_MAX do
    call("RPUSH", self.key, pack(pending[1], unpack(pending, first, math.min(first + LIMIT.QUEUED_MAX - 1, #pending))))
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

local function forget_one(due_ms, execution)
  local entry = ended:find(execution)
  if entry and entry.forget_ms == due_ms then
    ended:remove(execution)
    free_key(entry)
  end
end

-- The first of a queue, while they are due. True if there may be more.
local function forget_page(waiting)
  local page = waiting:page(0, LIMIT.FORGOTTEN_PAGE - 1)
  local count, due, due_ms = 0, {}, {}
  for _, blob in ipairs(page) do
    local element = { unpacked(blob) }
    if element[1] > book.now_ms then
      break
    end
    count = count + 1
    for at = 2, #element do
      due[#due + 1] = element[at]
      due_ms[#due] = element[1]
    end
  end
  ended:fetch(due)
  for at, execution in ipairs(due) do
    forget_one(due_ms[at], execution)
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
      book.forget_at_ms = math.min(book.forget_at_ms, (unpacked(first)))
    end
  end
end

-- Of the first element as many as need be.
local function forget_early(waiting, blob)
  local element, at = { unpacked(blob) }, 1
  while at < #element and entries.count() >= book.records_max do
    at = at + 1
    forget_one(element[1], element[at])
  end
  if at == #element then
    waiting:shift(1)
  else
    call("LSET", waiting.key, 0, pack(element[1], unpack(element, at + 1)))
  end
end

-- Room for one more record. When full, what ended longest ago is forgotten early; tombstones never are.
local function room()
  for _, waiting in ipairs({ MINTED, KEYED }) do
    while entries.count() >= book.records_max do
      local first = waiting:page(0, 0)[1]
      if not first then
        break
      end
      forget_early(waiting, first)
    end
  end
  return entries.count() < book.records_max
end

-- Identity.

-- The newest execution of a key, if it is remembered.
local function newest_of(key)
  local execution = key and keys:find(key)
  return execution and entries.find(execution) or nil
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
  local entry = entries.find(command.execution)
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
  entry.came = next_order()
  entries.put(entry)
  keys:put(command.key, command.execution)
  return claim_answer(command, entry, "claimed")
end

-- The key is free again: refusals are not kept.
local function unclaim(entry)
  free_key(entry)
  entry.key = nil
end

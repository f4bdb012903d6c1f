-- What the ledger itself concludes about engines: the counting proof (E3b) and their incarnations (E4):
-- `core/book_testimony.py` and `core/book_proof.py`, where the rules are explained.

local testimony = {}
local Replica = {}
Replica.__index = Replica

local function new_replica(name)
  return {
    name = name, order = 0, sequences = 0, reader = "", reader_until_ms = 0, undecided = 0, yield_until_ms = 0,
    yield_from_ms = 0, foreign = false, foreign_samples = 0, impossible = false, several = false, incarnation = 0,
    incarnations = {}, samples = {},
  }
end

local function read_replica(blob, name)
  local one = setmetatable(new_replica(name), Replica)
  one.order, one.sequences, one.reader, one.reader_until_ms, one.undecided, one.yield_until_ms, one.yield_from_ms, one.foreign,
  one.foreign_samples, one.impossible, one.several, one.incarnation, one.incarnations, one.samples = unpacked(blob)
  return one
end

local function write_replica(one)
  return pack(
    one.order, one.sequences, one.reader, one.reader_until_ms, one.undecided, one.yield_until_ms, one.yield_from_ms,
    one.foreign, one.foreign_samples, one.impossible, one.several, one.incarnation, one.incarnations, one.samples
  )
end

local replicas

of_domain(function() return new_shelf("replicas", read_replica, write_replica) end, function(one) replicas = one end)

function open_replica(name)
  local replica = replicas:find(name)
  if not replica then
    replica = setmetatable(new_replica(name), Replica)
    replica.order = next_order()
    replicas:put(name, replica)
  end
  return replica
end

function Replica:touch()
  replicas:touch(self.name)
end

-- What ended there lately: sequence and sequences, one after another. More than is asked for is cut off now and then.
function Replica:ends()
  local ends = self.ends_queue
  if not ends then
    ends = new_queue("ended:" .. self.name)
    self.ends_queue = ends
  end
  return ends
end

-- By so many sequences more is charged there.
function Replica:count(more)
  self.sequences = self.sequences + more
  self:touch()
end

function Replica:left(entry)
  local count, ends = sequences(entry.shape, entry.amounts), self:ends()
  ends:push(book.sequence, count)
  self:count(-count)
  if (ends.length or 2 * LIMIT.ENDED_MAX + 1) > 2 * LIMIT.ENDED_MAX then
    call("LTRIM", ends.key, -LIMIT.ENDED_MAX, -1)
    ends.length = 0
  end
end

-- Charged executions on it, in the order in which they came.
function Replica:entries()
  return live:inorder("entered", function(entry)
    return CHARGED[entry.state] and entry.shape.replica == self.name
  end)
end

-- Sequences of what ended there after that one, of the last that are remembered.
function Replica:ended_after(after_sequence)
  local ends, sum, seen, last = self:ends(), 0, 0, -1
  while seen < LIMIT.ENDED_MAX do
    local page = ends:page(last - LIMIT.ENDS_PAGE + 1, last)
    for at = #page, 1, -1 do
      local element = { unpacked(page[at]) }
      for place = #element - 1, 1, -2 do
        if element[place] <= after_sequence or seen == LIMIT.ENDED_MAX then
          return sum
        end
        sum, seen = sum + element[place + 1], seen + 1
      end
    end
    if #page < LIMIT.ENDS_PAGE then
      return sum
    end
    last = last - LIMIT.ENDS_PAGE
  end
  return sum
end

function Replica:reads(owner)
  return self.reader == owner and book.now_ms < self.reader_until_ms
end

-- A sample showed this value: `same`, `newer`, `stale` (it may be older than what is known) or `several`.
function Replica:show(incarnation, known)
  local values = self.incarnations
  if values[#values] == incarnation then
    return "same"
  end
  if known ~= self.incarnation then
    return "stale"
  end
  self:touch()
  if contains(values, incarnation) then
    self.several = true
    return "several"
  end
  values[#values + 1] = incarnation
  if #values > LIMIT.INCARNATIONS_MAX then
    table.remove(values, 1)
  end
  self.incarnation = self.incarnation + 1
  self.impossible, self.undecided = false, 0
  self.samples = {} -- they speak of the life before
  return "newer"
end

-- Compare a load with everything that was charged from Q to S. True when foreign load has just been found.
function Replica:note_foreign(load, after_sequence)
  local charged = self.sequences + self:ended_after(after_sequence)
  self:touch()
  if (load > charged) == self.foreign then
    self.foreign_samples = 0
    return false
  end
  self.foreign_samples = self.foreign_samples + 1
  if self.foreign_samples < LIMIT.FOREIGN_SAMPLES then
    return false
  end
  self.foreign_samples = 0
  self.foreign = not self.foreign
  return self.foreign
end

-- How many executions were certainly inside while the scrape was made; nil while an owner has yet to vouch.
function Replica:known_inside(sample)
  local inside = 0
  for _, entry in ipairs(self:entries()) do
    if entry.state == "RUNNING" and entry.running_sequence <= sample.after_sequence then
      local boot = boots:find(entry.owner)
      if boot.seen_sequence < sample.sequence then
        return nil
      end
      if not contains(boot.unvouched, entry.execution) then
        inside = inside + 1
      end
    end
  end
  return inside
end

-- What has left the engine, once the load was no more than what is known inside.
function Replica:proved_stopped(sample)
  local found = {}
  for _, entry in ipairs(self:entries()) do
    local closing = entry.closing_sequence
    if closing ~= 0 and closing <= sample.after_sequence then
      if entry.seen or sample.at_ms >= entry.closing_ms + book.lease_ms then
        found[#found + 1] = entry
      end
    end
  end
  return found
end

-- A sample decided nothing. After many, with work closing for long, new work pauses so that one can decide.
function Replica:doubt()
  self.undecided = self.undecided + 1
  if self.undecided < LIMIT.UNDECIDED_SAMPLES or book.now_ms < self.yield_from_ms then
    return
  end
  for _, entry in ipairs(self:entries()) do
    local closes = entry.state == "CANCELLING" or entry.state == "ORPHANED"
    if closes and book.now_ms >= entry.closing_ms + LIMIT.DOUBT_MS then
      self.yield_until_ms = book.now_ms + LIMIT.YIELD_MS
      self.yield_from_ms = book.now_ms + LIMIT.YIELD_EVERY_MS
      return
    end
  end
end

local function append(list, more)
  for _, one in ipairs(more) do
    list[#list + 1] = one
  end
end

-- Decide on the samples whose owners have vouched (E3b), oldest first.
function Replica:judge(ended, alarms)
  while #self.samples > 0 do
    self:touch()
    if self.foreign or self.impossible or self.several then
      self.samples = {}
      return
    end
    local sample = self.samples[1]
    local inside = self:known_inside(sample)
    if not inside then
      return
    end
    table.remove(self.samples, 1)
    if sample.load < inside then
      self.impossible = true
      alarms[#alarms + 1] = { "evidence_impossible", self.name }
      return
    end
    if sample.load == inside then
      self.undecided, self.yield_until_ms = 0, 0
      append(ended, finish_all(self:proved_stopped(sample), "E3b"))
    else
      self:doubt()
    end
  end
end

local function judge_all(ended, alarms)
  for _, replica in ipairs(replicas:inorder("order")) do
    if #replica.samples > 0 then
      replica:judge(ended, alarms)
    end
  end
end

function testimony.take_reader(command)
  local replica = open_replica(command.replica)
  local is_free = replica.reader == "" or replica.reader == command.owner or book.now_ms >= replica.reader_until_ms
  local outcome = "refused"
  if lives_on(command.owner) and is_free then
    replica.reader, replica.reader_until_ms = command.owner, book.now_ms + LIMIT.READER_MS
    replica:touch()
    outcome = "ok"
  end
  return full(outcome, "", { owner = replica.reader ~= "" and replica.reader or nil, replica = replica.name })
end

-- A measured load: is it foreign, and does it decide anything?
function testimony.put_sample(command)
  local replica = replicas:find(command.replica)
  local values = replica and replica.incarnations or NOTHING
  if not replica or values[#values] ~= command.incarnation or not replica:reads(command.owner) then
    return full("refused", "", { replica = command.replica, incarnation = replica and replica.incarnation or 0 })
  end
  local ended, alarms = {}, {}
  if replica:note_foreign(command.load, command.after_sequence) then
    alarms[1] = { "foreign_load", replica.name }
  end
  local samples = replica.samples
  samples[#samples + 1] = {
    load = command.load, after_sequence = command.after_sequence, sequence = book.sequence, at_ms = book.now_ms,
  }
  if #samples > LIMIT.SAMPLES_MAX then
    table.remove(samples, 1)
  end
  replica:judge(ended, alarms)
  return full("ok", "", { replica = replica.name, incarnation = replica.incarnation, records = ended, alarms = alarms })
end

-- What was stamped in an older life of the engine. What was never stamped may run in this one.
local function outlived(replica)
  local found = {}
  for _, entry in ipairs(replica:entries()) do
    if entry.incarnation > 0 and entry.incarnation < replica.incarnation then
      found[#found + 1] = entry
    end
  end
  return found
end

-- Number the engine's life and stamp what was seen in it; a newer life ends what was stamped in an older (E4).
function testimony.put_incarnation(command)
  local replica = open_replica(command.replica)
  local shown = replica:show(command.incarnation, command.known)
  local is_known, ended, alarms = shown == "same" or shown == "newer", {}, {}
  if is_known and not replica.several then
    if shown == "newer" then
      ended = finish_all(outlived(replica), "E4")
    end
    for _, execution in ipairs(command.inside) do
      local entry = entries.find(execution)
      if entry and CHARGED[entry.state] and entry.shape.replica == replica.name then
        entry.incarnation = replica.incarnation -- and if it was stamped before, then in this life
        touch(entry)
      end
    end
  end
  if shown == "several" then
    alarms[1] = { "several_engines", replica.name }
  end
  return full(is_known and "ok" or "refused", "", {
    replica = replica.name, incarnation = replica.incarnation, records = ended, alarms = alarms,
  })
end

function testimony.withdraw(command)
  local replica, ended = replicas:find(command.replica), {}
  if replica then
    ended = finish_all(replica:entries(), "E4")
    replica.several, replica.impossible, replica.foreign = false, false, false
    replica.foreign_samples, replica.undecided, replica.yield_until_ms = 0, 0, 0
    replica.samples = {}
    replica:touch()
  end
  return full("ok", "", { replica = command.replica, records = ended })
end

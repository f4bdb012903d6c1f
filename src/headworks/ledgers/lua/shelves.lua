-- How the book is kept: records in hashes and queues in lists; all under one hash tag.
--
-- What a list of commands touches is changed in memory and written when all of them have run: so many commands cost few calls,
-- and a fault in the middle of them has changed no record.
--
-- What is loaded stays loaded, so what one call has read or written is still there for the next: a *domain's parts*. They are
-- used only if the book in the store is, byte by byte, what this process wrote last in this life of the store (`apply.lua`):
-- whoever else may have written in between, another version of the script say, has counted the sequence on. Else they are read
-- anew, as they are needed.

local CHUNK = 500

-- What must be written in the end: each has `flush`.
local unwritten = {}
-- Every part a domain has: `new` makes it, `use` gives it the name it goes by.
local parts = {}
-- Root → its parts, for a few domains of this server.
local domains, domain_count = {}, 0
-- The one that is asked now. `stands`: what the store must say if the parts are still true. `kept`: how many names it remembers.
local domain

local function of_domain(new, use)
  parts[#parts + 1] = { new = new, use = use }
end

local function begin(root)
  ROOT, call, pack, unpacked = root, redis.call, cmsgpack.pack, cmsgpack.unpack -- not there yet when this is loaded
  unwritten = {}
end

-- True if nothing is known yet: all is to be read.
local function take_up(stands)
  local known = domains[ROOT]
  local is_cold = not known or known.stands ~= stands
  if is_cold then
    if not known then
      if domain_count >= LIMIT.DOMAINS_MAX then
        domains, domain_count = {}, 0
      end
      domain_count = domain_count + 1
    end
    known = { kept = 0 }
    domains[ROOT] = known
  end
  domain = known
  for at, part in ipairs(parts) do
    domain[at] = domain[at] or part.new()
    part.use(domain[at])
  end
  domain.stands = nil -- a call that fails half way leaves nothing that is believed
  return is_cold
end

local function put_down(stands)
  domain.stands = domain.kept <= LIMIT.KEPT_MAX and stands or nil
end

local function in_chunks(command, key, words)
  if #words <= CHUNK then
    if #words > 0 then
      call(command, key, unpack(words))
    end
    return
  end
  for first = 1, #words, CHUNK do
    call(command, key, unpack(words, first, math.min(first + CHUNK - 1, #words)))
  end
end

-- A shelf: records of one kind by their names, in one hash. In `kept`, false is what is known not to be there. `PASSING`: not
-- kept beyond the call, since few are asked for twice. `LIVING`: they come and go, so they are not counted as kept.

local PASSING, LIVING = "passing", "living"

local Shelf = {}
Shelf.__index = Shelf

local function new_shelf(name, read, write, kind)
  return setmetatable({
    key = ROOT .. ":" .. name, read = read, write = write, kind = kind, kept = {}, changed = {}, grown = 0, stored = nil,
    complete = false, is_unwritten = false,
  }, Shelf)
end

function Shelf:find(name)
  local record = self.kept[name]
  if record == nil then
    if self.complete then
      return false
    end
    local blob = call("HGET", self.key, name)
    record = blob and self.read(blob, name) or false
    self.kept[name] = record
    if not self.kind then
      domain.kept = domain.kept + 1
    end
  end
  return record
end

-- Many at once, so that each is not asked for by itself.
function Shelf:fetch(names)
  local missing, kept = {}, self.kept
  if self.complete then
    return
  end
  for _, name in ipairs(names) do
    if kept[name] == nil then
      kept[name] = false
      missing[#missing + 1] = name
    end
  end
  for first = 1, #missing, CHUNK do
    local last = math.min(first + CHUNK - 1, #missing)
    for at, blob in ipairs(call("HMGET", self.key, unpack(missing, first, last))) do
      if blob then
        local name = missing[first + at - 1]
        kept[name] = self.read(blob, name)
      end
    end
  end
end

function Shelf:touch(name)
  self.changed[name] = true
  if not self.is_unwritten then
    self.is_unwritten = true
    unwritten[#unwritten + 1] = self
  end
end

-- Where it is known that there is none.
function Shelf:add(name, record)
  self.grown = self.grown + 1
  self.kept[name] = record
  self:touch(name)
end

function Shelf:put(name, record)
  if self:find(name) then
    self.kept[name] = record
    self:touch(name)
  else
    self:add(name, record)
  end
end

-- Where it is known that there is one.
function Shelf:drop(name)
  self.grown = self.grown - 1
  self.kept[name] = false
  self:touch(name)
end

function Shelf:remove(name)
  if self:find(name) then
    self:drop(name)
  end
end

function Shelf:count()
  self.stored = self.stored or call("HLEN", self.key)
  return self.stored + self.grown
end

-- Every record there is, by name: from now on they are all known.
function Shelf:all()
  if not self.complete then
    local stored, kept = call("HGETALL", self.key), self.kept
    for at = 1, #stored, 2 do
      if kept[stored[at]] == nil then
        kept[stored[at]] = self.read(stored[at + 1], stored[at])
      end
    end
    self.complete = self.kind ~= PASSING
  end
  return self.kept
end

-- Those that `accepts` says yes to, by the order that their field says.
function Shelf:inorder(field, accepts)
  local found = {}
  for _, record in pairs(self:all()) do
    if record and (not accepts or accepts(record)) then
      found[#found + 1] = record
    end
  end
  table.sort(found, function(one, other) return one[field] < other[field] end)
  return found
end

function Shelf:flush()
  local written, removed, kept, write = {}, {}, self.kept, self.write
  local count = 0
  for name in pairs(self.changed) do
    local record = kept[name]
    local blob = record and write(record)
    if blob then
      written[count + 1], written[count + 2] = name, blob
      count = count + 2
    else
      removed[#removed + 1] = name
      if not record then
        kept[name] = nil
      end
    end
  end
  in_chunks("HSET", self.key, written)
  in_chunks("HDEL", self.key, removed)
  if self.stored then
    self.stored = self.stored + self.grown
  end
  self.changed, self.grown, self.is_unwritten = {}, 0, false
end

-- At the end of a call.
function Shelf:pass()
  if next(self.kept) then
    self.kept = {}
  end
end

-- A queue: what came first leaves first. An element holds everything that was pushed in one call, one value after another.

local Queue = {}
Queue.__index = Queue

local function new_queue(name)
  return setmetatable({ key = ROOT .. ":" .. name, pending = {}, is_unwritten = false }, Queue)
end

function Queue:push(...)
  local pending = self.pending
  for at = 1, select("#", ...) do
    pending[#pending + 1] = (select(at, ...))
  end
  if not self.is_unwritten then
    self.is_unwritten = true
    unwritten[#unwritten + 1] = self
  end
end

function Queue:page(first, last)
  if #self.pending > 0 then
    self:flush()
  end
  return call("LRANGE", self.key, first, last)
end

function Queue:shift(count)
  if count > 0 then
    call("LTRIM", self.key, count, -1)
  end
end

-- `packed`: another way to make elements of what waits (`records.lua`).
function Queue:flush()
  local pending = self.pending
  self.is_unwritten = false
  if #pending == 0 then
    return
  end
  self.pending = {}
  for first = 1, #pending, LIMIT.QUEUED_MAX do
    local element = pack(unpack(pending, first, math.min(first + LIMIT.QUEUED_MAX - 1, #pending)))
    self.length = call("RPUSH", self.key, element)
  end
end

-- How the book is kept: records in hashes, lists of names in sorted sets, queues in lists; all under one hash tag.
--
-- What a list of commands touches is read once, changed in memory, and written when all of them have run: so many commands
-- cost few calls, and a fault in the middle of them has changed no record. Only the turns (`turns.lua`) are written as they move.

local CHUNK = 500

-- Everything that must be written in the end: each has `flush`.
local unwritten = {}
-- What is loaded stays loaded, so whatever belongs to one call is made anew when the next begins.
local at_begin = {}

local function begin(root)
  ROOT, call, pack, unpacked = root, redis.call, cmsgpack.pack, cmsgpack.unpack -- not there yet when this is loaded
  unwritten = {}
  for _, renew in ipairs(at_begin) do
    renew()
  end
end

local function in_chunks(command, key, words)
  for first = 1, #words, CHUNK do
    call(command, key, unpack(words, first, math.min(first + CHUNK - 1, #words)))
  end
end

-- A shelf: records of one kind by their names, in one hash.

local Shelf = {}
Shelf.__index = Shelf

function Shelf:renew(name)
  self.key, self.kept, self.changed, self.grown, self.stored = ROOT .. ":" .. name, {}, {}, 0, nil
  unwritten[#unwritten + 1] = self
  return setmetatable(self, Shelf)
end

local function shelf(name, read, write)
  local one = { read = read, write = write }
  at_begin[#at_begin + 1] = function()
    Shelf.renew(one, name)
  end
  return one
end

function Shelf:find(name)
  local record = self.kept[name]
  if record == nil then
    local blob = call("HGET", self.key, name)
    record = blob and self.read(blob, name) or false
    self.kept[name] = record
  end
  return record
end

-- Many at once, so that each is not asked for by itself.
function Shelf:fetch(names)
  local missing = {}
  for _, name in ipairs(names) do
    if self.kept[name] == nil then
      self.kept[name] = false
      missing[#missing + 1] = name
    end
  end
  for first = 1, #missing, CHUNK do
    local last = math.min(first + CHUNK - 1, #missing)
    for at, blob in ipairs(call("HMGET", self.key, unpack(missing, first, last))) do
      local name = missing[first + at - 1]
      self.kept[name] = blob and self.read(blob, name) or false
    end
  end
end

function Shelf:put(name, record)
  if not self:find(name) then
    self.grown = self.grown + 1
  end
  self.kept[name] = record
  self.changed[name] = true
end

function Shelf:remove(name)
  if self:find(name) then
    self.grown = self.grown - 1
    self.kept[name] = false
    self.changed[name] = true
  end
end

function Shelf:count()
  self.stored = self.stored or call("HLEN", self.key)
  return self.stored + self.grown
end

-- Every record there is. By name; `inorder` says when each came.
function Shelf:all()
  local stored = call("HGETALL", self.key)
  for at = 1, #stored, 2 do
    if self.kept[stored[at]] == nil then
      self.kept[stored[at]] = self.read(stored[at + 1], stored[at])
    end
  end
  return self.kept
end

-- Those that carry an `order`, oldest first.
function Shelf:inorder()
  local found = {}
  for _, record in pairs(self:all()) do
    if record then
      found[#found + 1] = record
    end
  end
  table.sort(found, function(one, other) return one.order < other.order end)
  return found
end

function Shelf:flush()
  local written, removed = {}, {}
  for name in pairs(self.changed) do
    local record = self.kept[name]
    local blob = record and self.write(record)
    if blob then
      written[#written + 1] = name
      written[#written + 1] = blob
    else
      removed[#removed + 1] = name
    end
  end
  in_chunks("HSET", self.key, written)
  in_chunks("HDEL", self.key, removed)
  self.changed, self.grown, self.stored = {}, 0, nil
end

-- A line: names in the order in which they were added.

local Line = {}
Line.__index = Line
local lines

at_begin[#at_begin + 1] = function()
  lines = {}
end

local function line(name)
  local one = lines[name]
  if not one then
    one = setmetatable({ key = ROOT .. ":" .. name, pending = {} }, Line)
    lines[name] = one
    unwritten[#unwritten + 1] = one
  end
  return one
end

function Line:add(name, order)
  self.pending[name] = order
end

function Line:remove(name)
  self.pending[name] = false
end

function Line:names()
  self:flush()
  return call("ZRANGE", self.key, 0, -1)
end

function Line:page(first, last)
  self:flush()
  return call("ZRANGE", self.key, first, last)
end

function Line:flush()
  if not next(self.pending) then
    return
  end
  local added, removed = {}, {}
  for name, order in pairs(self.pending) do
    if order then
      added[#added + 1] = order
      added[#added + 1] = name
    else
      removed[#removed + 1] = name
    end
  end
  in_chunks("ZREM", self.key, removed)
  in_chunks("ZADD", self.key, added)
  self.pending = {}
end

-- A queue: what came first leaves first.

local Queue = {}
Queue.__index = Queue
local queues

at_begin[#at_begin + 1] = function()
  queues = {}
end

local function queue(name, most)
  local one = queues[name]
  if not one then
    one = setmetatable({ key = ROOT .. ":" .. name, most = most, pending = {} }, Queue)
    queues[name] = one
    unwritten[#unwritten + 1] = one
  end
  return one
end

function Queue:push(text)
  self.pending[#self.pending + 1] = text
end

function Queue:page(first, last)
  self:flush()
  return call("LRANGE", self.key, first, last)
end

function Queue:shift(count)
  if count > 0 then
    call("LTRIM", self.key, count, -1)
  end
end

function Queue:flush()
  if #self.pending == 0 then
    return
  end
  in_chunks("RPUSH", self.key, self.pending)
  if self.most then
    call("LTRIM", self.key, -self.most, -1)
  end
  self.pending = {}
end

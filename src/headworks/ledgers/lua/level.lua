-- One level of turns: a virtual time, a tag for every flow, and those that wait, sorted by their tags: `core/level.py`.
--
-- In a hash: `virtual`, `waits` (how many wait), `flows` (how many have a tag), `=NAME` its tag, `+NAME` that it waits (`w`) or
-- rests (`r`). Who waits and does not rest stands in `tags` and `names` side by side, the lowest tag first, and by name where
-- tags are the same. Where nobody waits a level knows only the flows it was asked about; else all of them.

local Level = {}
Level.__index = Level
local levels

of_domain(function() return {} end, function(one) levels = one end)

-- Bytes, as in Python: the server's own way to compare texts goes by its language.
local function before(one, other)
  local at = 1
  while true do
    local here, there = string.byte(one, at), string.byte(other, at)
    if here ~= there or not here then
      return (here or -1) < (there or -1)
    end
    at = at + 1
  end
end

local function level(name)
  local one = levels[name]
  if not one then
    local key = ROOT .. ":level:" .. name
    local head = call("HMGET", key, "virtual", "waits", "flows")
    one = setmetatable({
      key = key, finish = {}, waiting = {}, known = {}, tags = {}, names = {}, moved = {}, marked = {}, is_complete = false,
      is_unwritten = false,
    }, Level)
    one.virtual, one.waits, one.flows = tonumber(head[1] or 0), tonumber(head[2] or 0), tonumber(head[3] or 0)
    levels[name] = one
    if one.waits > 0 then
      one:know_all()
    end
  end
  return one
end

function Level:know(name)
  if self.known[name] or self.is_complete then
    return
  end
  local found = call("HMGET", self.key, "=" .. name, "+" .. name)
  self.known[name] = true
  self.finish[name] = found[1] and tonumber(found[1]) or nil
  self.waiting[name] = found[2] or nil
  domain.kept = domain.kept + 1
end

function Level:know_all()
  local stored = call("HGETALL", self.key)
  for at = 1, #stored, 2 do
    local sign, name = string.sub(stored[at], 1, 1), string.sub(stored[at], 2)
    if not self.known[name] then
      if sign == "=" then
        self.finish[name] = tonumber(stored[at + 1])
        domain.kept = domain.kept + 1
      elseif sign == "+" then
        self.waiting[name] = stored[at + 1]
      end
    end
  end
  self.is_complete = true
  for name, state in pairs(self.waiting) do
    if state == "w" then
      self:insert(self.finish[name], name)
    end
  end
end

function Level:touch()
  if not self.is_unwritten then
    self.is_unwritten = true
    unwritten[#unwritten + 1] = self
  end
end

function Level:set(name, tag)
  if self.finish[name] == nil then
    self.flows = self.flows + 1
  end
  self.finish[name] = tag
  self.moved[name] = true
  if not self.is_unwritten then
    self:touch()
  end
end

function Level:mark(name, waiting)
  self.waiting[name] = waiting
  self.marked[name] = true
  self:touch()
end

-- Where it stands, or would.
function Level:place(tag, name)
  local tags, names, low, high = self.tags, self.names, 1, #self.tags + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tags[middle] < tag or (tags[middle] == tag and names[middle] ~= name and before(names[middle], name)) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

function Level:insert(tag, name)
  local at = self:place(tag, name)
  table.insert(self.tags, at, tag)
  table.insert(self.names, at, name)
end

function Level:take_out(tag, name)
  local at = self:place(tag, name)
  table.remove(self.tags, at)
  table.remove(self.names, at)
end

-- The tag its next request starts at: its own while it waits, not before V if it is idle.
function Level:start(name)
  self:know(name)
  local finish = self.finish[name] or 0
  if finish > self.virtual or self.waiting[name] then
    return finish
  end
  return self.virtual
end

function Level:wait(name)
  self:know(name)
  if not self.waiting[name] then
    self.waits = self.waits + 1
    local tag = self:lift(name)
    self:mark(name, "w")
    self:insert(tag, name)
  elseif self.waiting[name] == "r" then
    self:mark(name, "w")
    self:insert(self.finish[name], name)
  end
end

function Level:rest(name)
  self:know(name)
  if self.waiting[name] == "w" then
    self:mark(name, "r")
    self:take_out(self.finish[name], name)
  end
end

function Level:leave(name)
  self:know(name)
  if self.waiting[name] then
    if self.waiting[name] == "w" then
      self:take_out(self.finish[name], name)
    end
    self.waits = self.waits - 1
    self:mark(name, nil)
  end
end

-- A grant: time moves to its start tag.
function Level:serve(name, cost_per_weight)
  if not self.known[name] then
    self:know(name)
  end
  local start = self.finish[name]
  if start == nil or (start < self.virtual and not self.waiting[name]) then
    start = self:lift(name)
  end
  if start > self.virtual then
    self.virtual = start
  end
  self:move(name, start + cost_per_weight)
end

-- The truth about what was charged: move the tag, but not back below V.
function Level:correct(name, difference_per_weight)
  self:know(name)
  local finish = self.finish[name] or self.virtual
  local corrected = finish + difference_per_weight
  if corrected < self.virtual then
    corrected = math.max(corrected, math.min(finish, self.virtual))
  end
  self:move(name, corrected)
end

function Level:caught_up(name)
  self:know(name)
  return (self.finish[name] or 0) >= self.virtual
end

function Level:move(name, tag)
  if self.waiting[name] == "w" then
    self:take_out(self.finish[name], name)
    self:insert(tag, name)
  end
  self:set(name, tag)
end

-- Whatever was not used while it was idle is gone.
function Level:lift(name)
  local finish = self.finish[name]
  if finish ~= nil and finish >= self.virtual then
    return finish
  end
  if finish == nil and self.flows >= LIMIT.FLOWS_MAX then
    self:sweep()
  end
  self:set(name, self.virtual)
  return self.virtual
end

-- Forget flows that would start at V anyway.
function Level:sweep()
  self:flush()
  local removed, stored = {}, call("HGETALL", self.key)
  for at = 1, #stored, 2 do
    local name = string.match(stored[at], "^=(.*)$")
    if name and tonumber(stored[at + 1]) <= self.virtual then
      self:know(name)
      if not self.waiting[name] then
        self.finish[name] = nil
        removed[#removed + 1] = stored[at]
      end
    end
  end
  self.flows = self.flows - #removed
  in_chunks("HDEL", self.key, removed)
  self:touch()
end

-- Who waits and does not rest, lowest tag first: `visit(name, tag)` for each until it says true.
function Level:in_turn(visit)
  local tags, names = self.tags, self.names
  local at = 1
  while at <= #names do
    local name = names[at]
    if visit(name, tags[at]) then
      return true
    end
    at = at + 1
  end
  return false
end

function Level:flush()
  if not self.is_unwritten then
    return
  end
  local written, removed = { "virtual", self.virtual, "waits", self.waits, "flows", self.flows }, {}
  local count = 6
  for name in pairs(self.moved) do
    if self.finish[name] then
      written[count + 1], written[count + 2] = "=" .. name, self.finish[name]
      count = count + 2
    end
  end
  for name in pairs(self.marked) do
    if self.waiting[name] then
      written[count + 1], written[count + 2] = "+" .. name, self.waiting[name]
      count = count + 2
    else
      removed[#removed + 1] = "+" .. name
    end
  end
  in_chunks("HSET", self.key, written)
  in_chunks("HDEL", self.key, removed)
  self.moved, self.marked, self.is_unwritten = {}, {}, false
end

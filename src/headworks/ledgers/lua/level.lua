-- One level of turns: a virtual time, a tag for every flow, and those that wait, sorted by their tags: `core/level.py`.
--
-- In a hash: `virtual`, `waits` (how many wait), `flows` (how many have a tag), `=NAME` its tag, `+NAME` that it waits (`w`) or
-- rests (`r`). Who waits and does not rest stands in a sorted set, by tag and then by name, and is written as it moves.

local Level = {}
Level.__index = Level
local levels

at_begin[#at_begin + 1] = function()
  levels = {}
end

local function level(name)
  local one = levels[name]
  if not one then
    local key = ROOT .. ":level:" .. name
    local head = call("HMGET", key, "virtual", "waits", "flows")
    one = setmetatable({ key = key, turns = key .. ":turns", finish = {}, waiting = {}, known = {}, changed = {} }, Level)
    one.virtual, one.waits, one.flows = tonumber(head[1] or 0), tonumber(head[2] or 0), tonumber(head[3] or 0)
    levels[name] = one
    unwritten[#unwritten + 1] = one
  end
  return one
end

function Level:know(name)
  if not self.known[name] then
    local found = call("HMGET", self.key, "=" .. name, "+" .. name)
    self.known[name] = true
    self.finish[name] = found[1] and tonumber(found[1]) or nil
    self.waiting[name] = found[2] or nil
  end
end

function Level:set(name, tag)
  if self.finish[name] == nil then
    self.flows = self.flows + 1
  end
  self.finish[name] = tag
  self.changed["=" .. name] = tag
end

function Level:mark(name, waiting)
  self.waiting[name] = waiting
  self.changed["+" .. name] = waiting or false
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
    self:mark(name, "w")
    call("ZADD", self.turns, self:lift(name), name)
  elseif self.waiting[name] == "r" then
    self:mark(name, "w")
    call("ZADD", self.turns, self.finish[name], name)
  end
end

function Level:rest(name)
  self:know(name)
  if self.waiting[name] == "w" then
    self:mark(name, "r")
    call("ZREM", self.turns, name)
  end
end

function Level:leave(name)
  self:know(name)
  if self.waiting[name] then
    if self.waiting[name] == "w" then
      call("ZREM", self.turns, name)
    end
    self.waits = self.waits - 1
    self:mark(name, nil)
  end
end

-- A grant: time moves to its start tag.
function Level:serve(name, cost_per_weight)
  self:know(name)
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
  self:set(name, tag)
  if self.waiting[name] == "w" then
    call("ZADD", self.turns, tag, name)
  end
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
  local stored = call("HGETALL", self.key)
  for at = 1, #stored, 2 do
    local name = string.match(stored[at], "^=(.*)$")
    if name and tonumber(stored[at + 1]) <= self.virtual then
      self:know(name)
      if not self.waiting[name] then
        self.finish[name] = nil
        self.flows = self.flows - 1
        self.changed[stored[at]] = false
      end
    end
  end
end

-- Who waits and does not rest, lowest tag first: `visit(name, tag)` for each until it says true.
function Level:in_turn(visit)
  local first, PAGE = 0, 64
  while true do
    local found = call("ZRANGE", self.turns, first, first + PAGE - 1, "WITHSCORES")
    for at = 1, #found, 2 do
      if visit(found[at], tonumber(found[at + 1])) then
        return true
      end
    end
    if #found < 2 * PAGE then
      return false
    end
    first = first + PAGE
  end
end

function Level:flush()
  local written, removed = { "virtual", self.virtual, "waits", self.waits, "flows", self.flows }, {}
  for name, value in pairs(self.changed) do
    if value then
      written[#written + 1] = name
      written[#written + 1] = value
    else
      removed[#removed + 1] = name
    end
  end
  if #written > 6 or #removed > 0 then
    in_chunks("HSET", self.key, written)
    in_chunks("HDEL", self.key, removed)
  end
  self.changed = {}
end

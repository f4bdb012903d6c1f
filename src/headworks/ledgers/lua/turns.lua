-- Whose turn it is: start-time fair queueing with the tags in the ledger, `core/fair.py`.
--
-- A pool's marks are kept by flow, all gateways' marks of one flow together and in the order in which they came. A mark is fresh
-- until `expires_ms`; then it is dormant and holds nobody up, and is forgotten a second later.

local function new_pool(name)
  return { name = name, order = 0, waiting_tokens = 0, fresh = 0, dormant = 0, slots = {}, owed_until_ms = 0 }
end

local function write_pool(pool)
  return pack(pool.order, pool.waiting_tokens, pool.fresh, pool.dormant, pool.slots, pool.owed_until_ms)
end

local function turns_of(pool)
  local turns = setmetatable(pool, Turns)
  turns.classes = level(pool.name)
  turns.tenants_of = {}
  turns.marks = new_shelf("marks:" .. pool.name, read_marks, write_marks)
  turns.looked_at_ms, turns.expire_ms = -1, 0
  return turns
end

local function read_pool(blob, name)
  local pool = new_pool(name)
  pool.order, pool.waiting_tokens, pool.fresh, pool.dormant, pool.slots, pool.owed_until_ms = unpacked(blob)
  pool.owed_until_ms = pool.owed_until_ms or 0
  return turns_of(pool)
end

local pools

of_domain(function() return new_shelf("pools", read_pool, write_pool) end, function(one) pools = one end)

-- The turns of a pool, with what has gone stale put aside: once for a list, since its time stands still.
local function looked_at(turns)
  if turns.looked_at_ms ~= book.now_ms then
    turns.looked_at_ms = book.now_ms
    turns:expire()
  end
  return turns
end

local function open_turns(name)
  local turns = pools:find(name)
  if not turns then
    turns = turns_of(new_pool(name))
    pools:put(name, turns)
  end
  return looked_at(turns)
end

-- Only if somebody has reserved or waited there before.
local function find_turns(name)
  local turns = pools:find(name)
  return turns and looked_at(turns)
end

function Turns:touch()
  pools:touch(self.name)
end

function Turns:tenants(class)
  local tenants = self.tenants_of[class]
  if not tenants then
    tenants = level(self.name .. "\0" .. class)
    self.tenants_of[class] = tenants
  end
  return tenants
end

-- `visit(mark, lower)` for marks whose tag is not above the flow's own next one, lowest first, until it says true.
function Turns:not_behind(class, tenant, visit)
  local flow, own_tag = class .. "\0" .. tenant, self.classes:start(class)
  return self.classes:in_turn(function(other_class, tag)
    if tag > own_tag then
      return true
    end
    local tenants, limit = self:tenants(other_class), nil
    if other_class == class then
      limit = tenants:start(tenant)
    end
    local is_over = false
    tenants:in_turn(function(other_tenant, tenant_tag)
      if limit and tenant_tag > limit then
        return true
      end
      local lower = tag < own_tag
      if limit then
        lower = tenant_tag < limit
      end
      for _, mark in ipairs(self.marks:find(other_class .. "\0" .. other_tenant) or NOTHING) do
        if visit(mark, lower and mark.flow ~= flow) then
          is_over = true
          return true
        end
      end
      return false
    end)
    return is_over
  end)
end

-- Whether somebody else has a tag that is not above this flow's: only then is there anything to yield to or to pass.
function Turns:anybody_before(class, tenant, owner)
  local flow, found = class .. "\0" .. tenant, false
  self:not_behind(class, tenant, function(mark)
    found = mark.owner ~= owner or mark.flow ~= flow
    return found
  end)
  return found
end

local function takes_of_all(shape, lacks)
  for _, lack in ipairs(lacks) do
    if not stands_on(shape, lack[2] .. "\0" .. lack[1]) then
      return false
    end
  end
  return true
end

-- Whether this ask has to let another go first, and whom, if that could start now; else what its grant would pass.
function Turns:must_yield(owner, shape)
  local class, tenant = shape.class, shape.tenant
  local own = self:fresh_mark(class .. "\0" .. tenant, owner)
  local own_order = own and own.order or self.order + 1
  local must, passing, looked = false, {}, 0
  self:not_behind(class, tenant, function(mark, lower)
    if mark == own or not counts(mark) then
      return false
    end
    looked = looked + 1
    if looked > LIMIT.LOOKED_PAST_MAX then
      return true
    end
    local lacks = counters.lacking(mark.shape, mark.amounts)
    if #lacks == 0 then
      must = lower
      passing = lower and { mark } or passing
    elseif takes_of_all(shape, lacks) then
      must = mark.passed >= LIMIT.PASSES_MAX and (lower or mark.order < own_order)
      passing[#passing + 1] = mark
      passing = must and NOTHING or passing
    end
    return must
  end)
  return must, passing
end

-- The flow's turn is taken.
function Turns:grant(shape, cost_tokens, passing)
  local class, tenant, tenants = shape.class, shape.tenant, self:tenants(shape.class)
  self.classes:serve(class, cost_tokens / shape.class_weight)
  tenants:serve(tenant, cost_tokens / shape.tenant_weight)
  for _, mark in ipairs(passing) do
    mark.passed = mark.passed + 1
    self.marks:touch(mark.flow)
  end
  if self.fresh + self.dormant == 0 then
    return
  end
  local flow = class .. "\0" .. tenant
  local own = self.marks:find(flow)
  if own and self.classes:caught_up(class) and tenants:caught_up(tenant) then
    for _, mark in ipairs(own) do
      mark.passed = 0
    end
    self.marks:touch(flow)
  end
end

-- More (or less) was used than was charged.
function Turns:correct(shape, difference_tokens)
  self.classes:correct(shape.class, difference_tokens / shape.class_weight)
  self:tenants(shape.class):correct(shape.tenant, difference_tokens / shape.tenant_weight)
end

function Turns:note_slots(owner, slots_tokens)
  local noted = slots_tokens ~= 0 and slots_tokens or nil
  if self.slots[owner] ~= noted then
    self.slots[owner] = noted
    self:touch()
  end
end

function Turns:slots_tokens()
  local sum = 0
  for _, tokens in pairs(self.slots) do
    sum = sum + tokens
  end
  return sum
end

-- Capacity came free: the mark with the lowest tag whose head fits, to be told so.
function Turns:wake()
  local woken, looked = nil, 0
  self.classes:in_turn(function(class)
    return self:tenants(class):in_turn(function(tenant)
      for _, mark in ipairs(self.marks:find(class .. "\0" .. tenant) or NOTHING) do
        if counts(mark) then
          looked = looked + 1
          if #counters.lacking(mark.shape, mark.amounts) == 0 then
            woken = mark
            return true
          end
          if looked >= LIMIT.LOOKED_PAST_MAX then
            return true
          end
        end
      end
      return false
    end)
  end)
  if woken then
    self:tell(woken)
  end
end

-- It has 20 ms to ask.
function Turns:tell(mark)
  if mark.woken_ms == 0 then
    mark.woken_ms = book.now_ms
    self.marks:touch(mark.flow)
  end
  wakes[#wakes + 1] = { mark.owner, self.name .. "\0" .. mark.flow, self.name }
end

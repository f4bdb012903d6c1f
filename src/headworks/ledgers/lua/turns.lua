-- Whose turn it is: start-time fair queueing with the tags in the ledger, `core/fair.py`.
--
-- A pool's marks are kept by flow, all gateways' marks of one flow together and in the order in which they came; a sorted set
-- says when each goes stale. A mark is fresh until `expires_ms`; then it holds nobody up, and is forgotten a second later.

local Turns = {}
Turns.__index = Turns

local function new_pool(name)
  return { name = name, order = 0, waiting_tokens = 0, fresh = 0, dormant = 0, expired_ms = 0, slots = {} }
end

local function read_pool(blob, name)
  local pool = new_pool(name)
  pool.order, pool.waiting_tokens, pool.fresh, pool.dormant, pool.expired_ms, pool.slots = unpacked(blob)
  return pool
end

local function write_pool(pool)
  return pack(pool.order, pool.waiting_tokens, pool.fresh, pool.dormant, pool.expired_ms, pool.slots)
end

local pools = shelf("pools", read_pool, write_pool)

local function read_marks(blob, flow)
  local class, tenant = string.match(flow, "^(%Z*)%z(.*)$")
  local marks = {}
  for at, one in ipairs(unpacked(blob)) do
    marks[at] = {
      flow = flow, class = class, tenant = tenant, owner = one[1], order = one[2], passed = one[3], charges = one[4],
      waiting_tokens = one[5], expires_ms = one[6], woken_ms = one[7],
    }
  end
  return marks
end

local function write_marks(marks)
  local list = {}
  for at, one in ipairs(marks) do
    list[at] = { one.owner, one.order, one.passed, one.charges, one.waiting_tokens, one.expires_ms, one.woken_ms }
  end
  return pack(list)
end

-- The turns of a pool, with what has gone stale put aside.
local opened

at_begin[#at_begin + 1] = function()
  opened = {}
end

local function open_turns(name)
  local turns = opened[name]
  if not turns then
    turns = setmetatable(pools:find(name) or new_pool(name), Turns)
    pools:put(name, turns)
    turns.classes = level(name)
    turns.marks = Shelf.renew({ read = read_marks, write = write_marks }, "marks:" .. name)
    turns.stale = ROOT .. ":stale:" .. name
    opened[name] = turns
    turns:expire()
  end
  return turns
end

-- Only if somebody has reserved or waited there before.
local function find_turns(name)
  return pools:find(name) and open_turns(name)
end

function Turns:tenants(class)
  return level(self.name .. "\0" .. class)
end

local function is_fresh(mark)
  return book.now_ms < mark.expires_ms
end

-- It is fresh, and it was not woken in vain.
local function counts(mark)
  return is_fresh(mark) and (mark.woken_ms == 0 or book.now_ms < mark.woken_ms + LIMIT.WOKEN_MS)
end

function Turns:mark_of(flow, owner)
  for _, mark in ipairs(self.marks:find(flow) or NOTHING) do
    if mark.owner == owner then
      return mark
    end
  end
  return nil
end

-- The mark of a flow at a gateway while it counts. One that was woken in vain has lost its turn.
function Turns:fresh_mark(flow, owner)
  local mark = self.fresh > 0 and self:mark_of(flow, owner)
  if not mark or not is_fresh(mark) then
    return nil
  end
  if not counts(mark) then
    self:drop(mark)
    return nil
  end
  return mark
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

local function takes_of_all(charges, lacks)
  for _, lack in ipairs(lacks) do
    if not stands_on(charges, lack[1], lack[2]) then
      return false
    end
  end
  return true
end

-- Whether this ask has to let another go first; if not, the marks that its grant would pass.
function Turns:must_yield(class, tenant, owner, charges)
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
    local lacks = counters.lacking(mark.charges)
    if #lacks == 0 then
      must = lower
    elseif takes_of_all(charges, lacks) then
      must = mark.passed >= LIMIT.PASSES_MAX and (lower or mark.order < own_order)
      passing[#passing + 1] = mark
    end
    return must
  end)
  return must, passing
end

-- The flow's turn is taken.
function Turns:grant(class, tenant, weights, cost_tokens, passing)
  local tenants = self:tenants(class)
  self.classes:serve(class, cost_tokens / weights[1])
  tenants:serve(tenant, cost_tokens / weights[2])
  for _, mark in ipairs(passing) do
    mark.passed = mark.passed + 1
    self.marks.changed[mark.flow] = true
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
    self.marks.changed[flow] = true
  end
end

-- More (or less) was used than was charged.
function Turns:correct(class, tenant, weights, difference_tokens)
  self.classes:correct(class, difference_tokens / weights[1])
  self:tenants(class):correct(tenant, difference_tokens / weights[2])
end

-- The flow waits at this gateway: with this head, or after a grant with one that is taken to be like it.
function Turns:leave_mark(class, tenant, owner, charges, waiting_tokens, granted)
  local flow = class .. "\0" .. tenant
  local mark = self:fresh_mark(flow, owner) or self:mark_of(flow, owner)
  if not mark then
    if self.fresh + self.dormant >= LIMIT.MARKS_MAX then
      return
    end
    mark = self:begin_to_wait(class, tenant, owner)
  else
    self:tenants(class):wait(tenant)
    if granted then
      self.order = self.order + 1
      mark.order = self.order
    end
    self:uncount(mark)
  end
  mark.charges, mark.waiting_tokens = charges, waiting_tokens
  mark.expires_ms, mark.woken_ms = book.now_ms + LIMIT.MARK_MS, 0
  self.fresh = self.fresh + 1
  self.waiting_tokens = self.waiting_tokens + waiting_tokens
  self.marks.changed[flow] = true
  call("ZADD", self.stale, mark.expires_ms, flow .. "\0" .. owner)
end

-- Unless others of this class or flow wait already, their tags begin at V.
function Turns:begin_to_wait(class, tenant, owner)
  local flow = class .. "\0" .. tenant
  self.order = self.order + 1
  local mark = { flow = flow, class = class, tenant = tenant, owner = owner, order = self.order, passed = 0 }
  self.classes:wait(class)
  self:tenants(class):wait(tenant)
  local same_flow = self.marks:find(flow) or {}
  same_flow[#same_flow + 1] = mark
  self.marks:put(flow, same_flow)
  return mark
end

-- It is no longer among those that are counted as what it was.
function Turns:uncount(mark)
  if is_fresh(mark) then
    self.fresh = self.fresh - 1
    self.waiting_tokens = self.waiting_tokens - mark.waiting_tokens
  else
    self.dormant = self.dormant - 1
  end
end

function Turns:unmark(class, tenant, owner)
  local mark = self:mark_of(class .. "\0" .. tenant, owner)
  if mark then
    self:drop(mark)
  end
end

function Turns:drop(mark)
  self:uncount(mark)
  call("ZREM", self.stale, mark.flow .. "\0" .. mark.owner)
  local left = {}
  for _, one in ipairs(self.marks:find(mark.flow) or NOTHING) do
    if one ~= mark then
      left[#left + 1] = one
    end
  end
  if #left > 0 then
    self.marks:put(mark.flow, left)
    self:rest_if_dormant(mark.flow)
    return
  end
  self.marks:remove(mark.flow)
  local tenants = self:tenants(mark.class)
  tenants:leave(mark.tenant)
  if tenants.waits == 0 then
    self.classes:leave(mark.class)
  end
end

-- A flow holds nobody up while no gateway has renewed its mark, and need not be looked past.
function Turns:rest_if_dormant(flow)
  local marks = self.marks:find(flow)
  for _, mark in ipairs(marks) do
    if is_fresh(mark) then
      return
    end
  end
  self:tenants(marks[1].class):rest(marks[1].tenant)
end

local function parted(member)
  return string.match(member, "^(%Z*%z%Z*)%z(.*)$")
end

-- Marks whose time is over are dormant, and forgotten if they are not renewed. Once for a list: its time stands still.
-- A call that failed half way may have left the entry of a mark that was never written.
function Turns:drop_or_strike(member)
  local mark = self:mark_of(parted(member))
  if mark then
    self:drop(mark)
  else
    call("ZREM", self.stale, member)
  end
end

function Turns:expire()
  if self.fresh + self.dormant == 0 then
    return
  end
  for _, member in ipairs(call("ZRANGEBYSCORE", self.stale, "(" .. self.expired_ms, book.now_ms)) do
    local flow, owner = parted(member)
    local mark = self:mark_of(flow, owner)
    if mark then
      self.waiting_tokens = self.waiting_tokens - mark.waiting_tokens
      self.fresh, self.dormant = self.fresh - 1, self.dormant + 1
      self:rest_if_dormant(flow)
    end
  end
  self.expired_ms = book.now_ms
  for _, member in ipairs(call("ZRANGEBYSCORE", self.stale, "-inf", book.now_ms - LIMIT.MARK_KEPT_MS)) do
    self:drop_or_strike(member)
  end
end

function Turns:note_slots(owner, slots_tokens)
  self.slots[owner] = slots_tokens ~= 0 and slots_tokens or nil
end

function Turns:slots_tokens()
  local sum = 0
  for _, tokens in pairs(self.slots) do
    sum = sum + tokens
  end
  return sum
end

-- The gateway is gone: nothing waits there, and its slots are nobody's.
function Turns:forget(owner)
  if self.fresh + self.dormant > 0 then
    for _, member in ipairs(call("ZRANGE", self.stale, 0, -1)) do
      local _, whose = parted(member)
      if whose == owner then
        self:drop_or_strike(member)
      end
    end
  end
  self.slots[owner] = nil
end

-- Capacity came free: the mark with the lowest tag whose head fits, to be told so; it has 20 ms to ask.
function Turns:wake()
  local woken, looked = nil, 0
  self.classes:in_turn(function(class)
    return self:tenants(class):in_turn(function(tenant)
      for _, mark in ipairs(self.marks:find(class .. "\0" .. tenant) or NOTHING) do
        if counts(mark) then
          looked = looked + 1
          if #counters.lacking(mark.charges) == 0 then
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
    if woken.woken_ms == 0 then
      woken.woken_ms = book.now_ms
      self.marks.changed[woken.flow] = true
    end
    wakes[#wakes + 1] = { woken.owner, self.name }
  end
end

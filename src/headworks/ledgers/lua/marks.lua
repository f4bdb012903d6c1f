-- The marks of a pool: which flow waits at which gateway, with what at its head: `core/fair.py`.

local Turns = {}
Turns.__index = Turns

local function read_marks(blob, flow)
  local class, tenant = string.match(flow, "^(%Z*)%z(.*)$")
  local marks = {}
  for at, one in ipairs(unpacked(blob)) do
    marks[at] = {
      flow = flow, class = class, tenant = tenant, owner = one[1], order = one[2], passed = one[3], shape = shape_of(one[4]),
      amounts = one[5], waiting_tokens = one[6], expires_ms = one[7], woken_ms = one[8], is_dormant = one[9],
    }
  end
  return marks
end

local function write_marks(marks)
  local list = {}
  for at, one in ipairs(marks) do
    list[at] = {
      one.owner, one.order, one.passed, one.shape.blob, one.amounts, one.waiting_tokens, one.expires_ms, one.woken_ms,
      one.is_dormant,
    }
  end
  return pack(list)
end

-- It is fresh, and it was not woken in vain.
local function counts(mark)
  return not mark.is_dormant and (mark.woken_ms == 0 or book.now_ms < mark.woken_ms + LIMIT.WOKEN_MS)
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
  if not mark or mark.is_dormant then
    return nil
  end
  if not counts(mark) then
    self:drop(mark)
    return nil
  end
  return mark
end

-- The other gateways of its flow are woken before its own is again.
local function move_last(same_flow, mark)
  for at = 1, #same_flow - 1 do
    if same_flow[at] == mark then
      table.remove(same_flow, at)
      same_flow[#same_flow + 1] = mark
      return
    end
  end
end

-- The flow waits at this gateway: with this head, or after a grant with one that is taken to be like it.
function Turns:leave_mark(owner, shape, amounts, waiting_tokens, granted)
  local flow = shape.class .. "\0" .. shape.tenant
  local mark = self:fresh_mark(flow, owner) or self:mark_of(flow, owner)
  if not mark then
    if self.fresh + self.dormant >= LIMIT.MARKS_MAX then
      return
    end
    mark = self:begin_to_wait(shape.class, shape.tenant, owner)
  else
    self:tenants(shape.class):wait(shape.tenant)
    if granted then
      self.order = self.order + 1
      mark.order = self.order
      move_last(self.marks:find(flow), mark)
    end
    self:uncount(mark)
  end
  mark.shape, mark.amounts, mark.waiting_tokens = shape, amounts, waiting_tokens
  mark.expires_ms, mark.woken_ms, mark.is_dormant = book.now_ms + LIMIT.MARK_MS, 0, false
  self.expire_ms = math.min(self.expire_ms, mark.expires_ms)
  self.fresh = self.fresh + 1
  self.waiting_tokens = self.waiting_tokens + waiting_tokens
  self.marks:touch(flow)
  self:touch()
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
  if mark.is_dormant then
    self.dormant = self.dormant - 1
  else
    self.fresh = self.fresh - 1
    self.waiting_tokens = self.waiting_tokens - mark.waiting_tokens
  end
  self:touch()
end

function Turns:unmark(class, tenant, owner)
  local mark = self:mark_of(class .. "\0" .. tenant, owner)
  if mark then
    self:drop(mark)
  end
end

function Turns:drop(mark)
  self:uncount(mark)
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
    if not mark.is_dormant then
      return
    end
  end
  self:tenants(marks[1].class):rest(marks[1].tenant)
end

function Turns:every_mark()
  local found = {}
  for _, marks in pairs(self.marks:all()) do
    for _, mark in ipairs(marks or NOTHING) do
      found[#found + 1] = mark
    end
  end
  return found
end

-- Marks whose time is over are dormant, and forgotten if they are not renewed. Nobody looks before the first one's time is over.
function Turns:expire()
  if self.fresh + self.dormant == 0 or book.now_ms < self.expire_ms then
    return
  end
  self.expire_ms = LIMIT.NEVER_MS
  for _, mark in ipairs(self:every_mark()) do
    if book.now_ms >= mark.expires_ms + LIMIT.MARK_KEPT_MS then
      self:lay_down(mark)
      self:drop(mark)
    elseif book.now_ms >= mark.expires_ms then
      self:lay_down(mark)
      self.expire_ms = math.min(self.expire_ms, mark.expires_ms + LIMIT.MARK_KEPT_MS)
    else
      self.expire_ms = math.min(self.expire_ms, mark.expires_ms)
    end
  end
end

function Turns:lay_down(mark)
  if mark.is_dormant then
    return
  end
  mark.is_dormant = true
  self.waiting_tokens = self.waiting_tokens - mark.waiting_tokens
  self.fresh, self.dormant = self.fresh - 1, self.dormant + 1
  self.marks:touch(mark.flow)
  self:touch()
  self:rest_if_dormant(mark.flow)
end

-- The gateway is gone: nothing waits there, and its slots are nobody's.
function Turns:forget(owner)
  if self.fresh + self.dormant > 0 then
    for _, mark in ipairs(self:every_mark()) do
      if mark.owner == owner then
        self:drop(mark)
      end
    end
  end
  self:note_slots(owner, 0)
end

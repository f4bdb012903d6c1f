-- What is held against every (scope, unit), and the limits it is compared with: `core/book_counters.py`.
--
-- A counter is called by its unit and scope. One that holds nothing and has no limit is not stored, but stays where it is in
-- memory: shapes point at it.

local counters = {}

local function read_counter(blob, name)
  local held, committed, limit, excess, floor, within, guaranteed, kept, lent = unpacked(blob)
  return {
    name = name, held = held, committed = committed, limit = limit, excess = excess, is_changed = false, floor = floor or 0,
    within = within or "", guaranteed = guaranteed or 0, kept = kept or 0, lent = lent or "",
  }
end

local function write_counter(counter)
  counter.is_changed = false
  if counter.floor > 0 or counter.guaranteed > 0 then
    return pack(
      counter.held, counter.committed, counter.limit, counter.excess, counter.floor, counter.within, counter.guaranteed,
      counter.kept, counter.lent
    )
  end
  if counter.held == 0 and counter.limit == LIMIT.UNLIMITED then
    return nil
  end
  return pack(counter.held, counter.committed, counter.limit, counter.excess)
end

local counter_shelf

of_domain(function() return new_shelf("counters", read_counter, write_counter) end, function(one) counter_shelf = one end)

local function part_names(counter)
  counter.unit, counter.scope = string.match(counter.name, "^(%Z*)%z(.*)$")
  counter.is_read = READ_UNITS[counter.unit] or false
  return counter
end

function counters.named(name)
  local counter = counter_shelf:find(name)
  if not counter then
    counter = {
      name = name, held = 0, committed = 0, limit = LIMIT.UNLIMITED, excess = 0, is_changed = false, floor = 0, within = "",
      guaranteed = 0, kept = 0, lent = "",
    }
    counter_shelf.kept[name] = counter
    domain.kept = domain.kept + 1
  end
  if not counter.scope then
    part_names(counter)
  end
  return counter
end

function counters.of(scope, unit)
  return counters.named(unit .. "\0" .. scope)
end

local function changed(counter)
  counter.is_changed = true
  counter_shelf:touch(counter.name)
end

-- What is kept for it was `unused` so far: that is counted along.
local function count_kept(counter, held_before)
  local more = math.max(0, counter.floor - counter.held) - math.max(0, counter.floor - held_before)
  if more ~= 0 then
    local within = counters.named(counter.within)
    within.kept = within.kept + more
    changed(within)
  end
end

-- By so much, which may be negative.
local function hold(counter, amount)
  local before = counter.held
  counter.held = before + amount
  if counter.floor > 0 then
    count_kept(counter, before)
  end
  if not counter.is_changed then
    changed(counter)
  end
end

-- A shape is what many requests have in common: where they run, whose turn they take, and what is charged for each, all but the
-- amounts. It comes as one text, which is taken apart once: its parts with a byte 1 between them.

local shapes

of_domain(function() return {} end, function(one) shapes = one end)

local PART = "\1"
local HEAD = "^([^\1]*)\1([^\1]*)\1([^\1]*)\1([^\1]*)\1([^\1]*)\1([^\1]*)(.*)$"

local function shape_from(blob)
  local pool, replica, class, tenant, class_weight, tenant_weight, rest = string.match(blob, HEAD)
  local one = {
    blob = blob, head = string.sub(blob, 1, #blob - #rest), pool = pool, replica = replica, class = class ~= "" and class or nil,
    tenant = tenant, class_weight = tonumber(class_weight), tenant_weight = tonumber(tenant_weight), names = {},
    counters = {}, requests = {}, reads = false,
  }
  for name in string.gmatch(rest, "\1([^\1]*)") do
    local counter = counters.named(name)
    one.names[#one.names + 1], one.counters[#one.counters + 1] = name, counter
    one.reads = one.reads or counter.is_read
    if counter.unit == "requests" then
      one.requests[#one.requests + 1] = #one.names
    end
  end
  one.session = string.match(one.names[1] or "", "^tokens%z(session:.*)$")
  one.is_observed = string.find(one.names[1] or "", "^[^%z]*%zobserved:") ~= nil
  return one
end

function shape_of(blob)
  local one = shapes[blob]
  if not one then
    one = shape_from(blob)
    shapes[blob] = one
    domain.kept = domain.kept + 1
  end
  return one
end

-- The same with other charges, as `Words.shape` in `valkey_wire.py` writes it.
function make_shape(like, names)
  return shape_of(table.concat({ like.head, unpack(names) }, PART))
end

-- How many sequences of the engine such charges stand for.
local function sequences(shape, amounts)
  local most = nil
  for _, at in ipairs(shape and shape.requests or NOTHING) do
    if amounts[at] > (most or -1) then
      most = amounts[at]
    end
  end
  return most or 1
end

local function stands_on(shape, name)
  for _, one in ipairs(shape.names) do
    if one == name then
      return true
    end
  end
  return false
end

-- `field` of the floors within this counter that the charges stand on, added up; each once.
local function own_part(shape, counter, field)
  local sum, seen = 0, {}
  for _, one in ipairs(shape.counters) do
    if one.floor > 0 and one.within == counter.name and not seen[one] then
      seen[one] = true
      sum = sum + (field == "floor" and one.floor or math.max(0, one.floor - one.held))
    end
  end
  return sum
end

local function is_lent(shape, counter)
  return counter.lent ~= "" and stands_on(shape, counter.lent)
end

-- What does not fit, while the charges stand in the counters.
local function shortfalls_of(shape, amounts)
  local found = {}
  for at, counter in ipairs(shape.counters) do
    local held, limit = counter.held, counter.limit
    if held <= limit and counter.guaranteed > 0 and not is_lent(shape, counter) then
      limit = limit - counter.kept + own_part(shape, counter, "unused")
      if counter.lent ~= "" then
        held = held - counters.named(counter.lent).held
      end
    end
    local alone = counter.is_read and held == amounts[at]
    if held > limit and amounts[at] ~= 0 and not alone then
      found[#found + 1] = { counter.scope, counter.unit, held, limit }
    end
  end
  return found
end

-- It would take nothing but what is kept for it: of every floor it stands on, the part that is not in use.
function counters.inside(shape, amounts)
  local found = false
  if shape.is_observed then -- nothing holds it up at all
    return true
  elseif #book.floors == 0 then
    return false
  end
  for at, counter in ipairs(shape.counters) do
    if counter.floor > 0 then
      if counter.held + amounts[at] > counter.floor then
        return false
      end
      found = true
    end
  end
  return found
end

-- A limit that parts are kept of is among what was missing.
function counters.owes(shortfalls)
  for _, short in ipairs(shortfalls) do
    if counters.of(short[1], short[2]).guaranteed > 0 then
      return true
    end
  end
  return false
end

local function note_excess(shape)
  for _, counter in ipairs(shape.counters) do
    if counter.held > counter.limit then
      counter.excess = math.max(counter.excess, counter.held)
    end
  end
end

-- Charge all of them, or none: then the list says what was missing.
function counters.take(shape, amounts)
  local fits, list = true, shape.counters
  for at = 1, #list do
    local counter = list[at]
    local before = counter.held
    local held = before + amounts[at]
    counter.held = held
    if held > counter.limit then
      fits = false
    end
    if counter.floor > 0 then
      count_kept(counter, before)
    end
    if not counter.is_changed then
      changed(counter)
    end
  end
  if fits and #book.floors == 0 then
    return NOTHING
  end
  local shortfalls = shortfalls_of(shape, amounts)
  if #shortfalls > 0 and shape.is_observed then -- it runs whatever the limits (F3)
    note_excess(shape)
    return NOTHING
  elseif #shortfalls > 0 then
    counters.give(shape, amounts)
  end
  return shortfalls
end

function counters.force(shape, amounts)
  for at, counter in ipairs(shape.counters) do
    hold(counter, amounts[at])
    counter.excess = math.max(counter.excess, counter.held)
  end
end

function counters.give(shape, amounts)
  local list = shape and shape.counters or NOTHING
  for at = 1, #list do
    local counter = list[at]
    local before = counter.held
    local held = before - amounts[at]
    counter.held = held
    if held < 0 then
      book.underflows = book.underflows + 1
    end
    if counter.floor > 0 then
      count_kept(counter, before)
    end
    if not counter.is_changed then
      changed(counter)
    end
  end
end

-- The charges that could not be taken now, as shortfalls. Nothing is charged, and nothing of it left behind.
function counters.lacking(shape, amounts)
  if shape.is_observed then
    return NOTHING
  end
  local shortfalls = counters.take(shape, amounts)
  if #shortfalls == 0 then
    counters.give(shape, amounts)
  end
  return shortfalls
end

function counters.never_fits(shape, amounts)
  local never = {}
  for at, counter in ipairs(shape.counters) do
    local limit = counter.limit
    if counter.guaranteed > 0 and not is_lent(shape, counter) then
      limit = limit - counter.guaranteed + own_part(shape, counter, "floor")
    end
    if amounts[at] > limit and not counter.is_read then
      never[#never + 1] = { counter.scope, counter.unit, amounts[at], limit }
    end
  end
  return never
end

local function commit(counter, amount)
  if counter.limit ~= LIMIT.UNLIMITED then
    counter.committed = counter.committed + amount
    hold(counter, amount)
    if counter.held > counter.limit then
      counter.excess = math.max(counter.excess, counter.held)
    end
  end
end

-- Names and amounts, one after another.
function counters.commit(pairs_told)
  for at = 1, #pairs_told, 2 do
    commit(counters.named(pairs_told[at]), pairs_told[at + 1])
  end
end

-- Limits go, unless whoever tells does not know them yet, or it is by the policy in force and they were only not told: then those
-- of former periods go.
local function lift_limits(limits, keeps)
  local told, stands, periods = {}, {}, {}
  for _, limit in ipairs(limits) do
    local told_or_stands = limit[3] == LIMIT.STANDING and stands or told
    told_or_stands[limit[2] .. "\0" .. limit[1]] = true
    local quota = string.match(limit[1], "^(.*)@")
    if quota then
      periods[quota] = limit[1]
    end
  end
  for name, counter in pairs(counter_shelf:all()) do
    if counter then
      local scope = (counter.scope and counter or part_names(counter)).scope
      local period = periods[string.match(scope, "^(.*)@") or ""]
      if not stands[name] and (not keeps or told[name] or (period and scope < period)) then
        counter.limit, counter.excess = LIMIT.UNLIMITED, 0
        changed(counter)
      end
    end
  end
end

local function set_floors(floors)
  for _, counter in pairs(counter_shelf:all()) do
    if counter and (counter.floor > 0 or counter.guaranteed > 0) then
      counter.floor, counter.within, counter.guaranteed, counter.kept, counter.lent = 0, "", 0, 0, ""
      changed(counter)
    end
  end
  for _, floor in ipairs(floors) do
    local counter, within = counters.of(floor[1], floor[2]), counters.of(floor[4], floor[2])
    counter.floor, counter.within = floor[3], within.name
    within.guaranteed = within.guaranteed + floor[3]
    within.kept = within.kept + math.max(0, floor[3] - counter.held)
    within.lent = floor[5] ~= "" and counters.of(floor[5], floor[2]).name or ""
    changed(counter)
    changed(within)
  end
  book.floors = floors
end

-- Replace every limit and floor; what is held stays held, and what is committed as long as there is a limit.
function counters.set(limits, floors, committed, keeps)
  lift_limits(limits, keeps)
  for _, limit in ipairs(limits) do
    if limit[3] ~= LIMIT.STANDING then
      local counter = counters.of(limit[1], limit[2])
      counter.limit = limit[3]
      changed(counter)
      if counter.held > counter.limit then
        counter.excess = counter.held
      end
    end
  end
  set_floors(floors)
  for _, counter in pairs(counter_shelf.kept) do
    if counter and counter.committed ~= 0 and counter.limit == LIMIT.UNLIMITED then
      hold(counter, -counter.committed)
      counter.committed = 0
    end
  end
  local more = {}
  for _, charge in ipairs(committed) do
    local counter = counters.of(charge[1], charge[2])
    more[#more + 1] = { counter, charge[3] - counter.committed }
  end
  for _, one in ipairs(more) do
    if one[2] > 0 then
      commit(one[1], one[2])
    end
  end
end

-- What is held against every (scope, unit), and the limits it is compared with: `core/book_counters.py`.
--
-- A counter that holds nothing and has no limit is not kept.

local counters = {}

at_begin[#at_begin + 1] = function()
  counters.by_unit = {}
end

local function read_counter(blob, name)
  local held, committed, limit, excess = unpacked(blob)
  return { name = name, held = held, committed = committed, limit = limit, excess = excess }
end

local function write_counter(counter)
  if counter.held == 0 and counter.limit == LIMIT.UNLIMITED then
    return nil
  end
  return pack(counter.held, counter.committed, counter.limit, counter.excess)
end

local counter_shelf = shelf("counters", read_counter, write_counter)

local function named(counter)
  local unit, scope = string.match(counter.name, "^(%Z*)%z(.*)$")
  counter.scope, counter.unit = scope, unit
  counter.is_read = READ_UNITS[unit] or false
  return counter
end

function counters.of(scope, unit)
  local of_unit = counters.by_unit[unit]
  if not of_unit then
    of_unit = {}
    counters.by_unit[unit] = of_unit
  end
  local counter = of_unit[scope]
  if not counter then
    local name = unit .. "\0" .. scope
    counter = counter_shelf:find(name)
    if not counter then
      counter = { name = name, held = 0, committed = 0, limit = LIMIT.UNLIMITED, excess = 0 }
      counter_shelf.kept[name] = counter
    end
    of_unit[scope] = named(counter)
  end
  return counter
end

-- By so much, which may be negative.
local function hold(counter, amount)
  counter.held = counter.held + amount
  counter_shelf.changed[counter.name] = true
end

local function stands_on(charges, scope, unit)
  for _, charge in ipairs(charges) do
    if charge[1] == scope and charge[2] == unit then
      return true
    end
  end
  return false
end

local function foreign_floors(charges, scope, unit)
  local found = {}
  for _, floor in ipairs(book.floors) do
    if floor[4] == scope and floor[2] == unit and not stands_on(charges, floor[1], unit) then
      found[#found + 1] = floor
    end
  end
  return found
end

-- What does not fit, while the charges stand in the counters.
local function shortfalls_of(charges)
  local found = {}
  for _, charge in ipairs(charges) do
    local counter, amount = counters.of(charge[1], charge[2]), charge[3]
    local alone = counter.is_read and counter.held == amount
    if counter.held > counter.limit and amount ~= 0 and not alone then
      found[#found + 1] = { counter.scope, counter.unit, counter.held, counter.limit }
    end
  end
  if #book.floors == 0 then
    return found
  end
  for _, charge in ipairs(charges) do
    local counter = counters.of(charge[1], charge[2])
    local left = counter.limit
    for _, floor in ipairs(foreign_floors(charges, counter.scope, counter.unit)) do
      left = left - math.max(0, floor[3] - counters.of(floor[1], floor[2]).held)
      if counter.held > left and charge[3] ~= 0 then
        found[#found + 1] = { floor[1], floor[2], counter.held, left }
      end
    end
  end
  return found
end

-- Charge all of them, or none: then the list says what was missing.
function counters.take(charges)
  local fits = true
  for at = 1, #charges do
    local charge = charges[at]
    local counter = counters.of(charge[1], charge[2])
    hold(counter, charge[3])
    if counter.held > counter.limit then
      fits = false
    end
  end
  if fits and #book.floors == 0 then
    return NOTHING
  end
  local shortfalls = shortfalls_of(charges)
  if #shortfalls > 0 then
    counters.give(charges)
  end
  return shortfalls
end

function counters.force(charges)
  for _, charge in ipairs(charges) do
    local counter = counters.of(charge[1], charge[2])
    hold(counter, charge[3])
    counter.excess = math.max(counter.excess, counter.held)
  end
end

function counters.give(charges)
  for at = 1, #charges do
    local charge = charges[at]
    local counter = counters.of(charge[1], charge[2])
    hold(counter, -charge[3])
    if counter.held < 0 then
      book.underflows = book.underflows + 1
    end
  end
end

-- The charges that could not be taken now, as shortfalls. Nothing is charged.
function counters.lacking(charges)
  local shortfalls = counters.take(charges)
  if #shortfalls == 0 then
    counters.give(charges)
  end
  return shortfalls
end

function counters.never_fits(charges)
  local never = {}
  for _, charge in ipairs(charges) do
    local scope, unit, amount = charge[1], charge[2], charge[3]
    local counter = counters.of(scope, unit)
    if not counter.is_read then
      local limit = counter.limit
      if amount > limit then
        never[#never + 1] = { scope, unit, amount, limit }
      end
      for _, floor in ipairs(foreign_floors(charges, scope, unit)) do
        limit = limit - floor[3]
        if amount > limit then
          never[#never + 1] = { floor[1], unit, amount, limit }
        end
      end
    end
  end
  return never
end

function counters.commit(charges)
  for _, charge in ipairs(charges) do
    local counter = counters.of(charge[1], charge[2])
    if counter.limit ~= LIMIT.UNLIMITED then
      counter.committed = counter.committed + charge[3]
      hold(counter, charge[3])
      if counter.held > counter.limit then
        counter.excess = math.max(counter.excess, counter.held)
      end
    end
  end
end

-- Replace every limit and floor; what is held stays held, and what is committed as long as there is a limit.
function counters.set(limits, floors, committed, keeps)
  local told, periods = {}, {}
  for _, limit in ipairs(limits) do
    told[limit[2] .. "\0" .. limit[1]] = true
    local quota = string.match(limit[1], "^(.*)@")
    if quota then
      periods[quota] = limit[1]
    end
  end
  local names = {}
  for name in pairs(counter_shelf:all()) do
    names[#names + 1] = name
  end
  for _, name in ipairs(names) do
    local unit, scope = string.match(name, "^(%Z*)%z(.*)$")
    local counter, period = counters.of(scope, unit), periods[string.match(scope, "^(.*)@") or ""]
    if not keeps or told[name] or (period and scope < period) then
      counter.limit, counter.excess = LIMIT.UNLIMITED, 0
      counter_shelf.changed[name] = true
    end
  end
  for _, limit in ipairs(limits) do
    local counter = counters.of(limit[1], limit[2])
    counter.limit = limit[3]
    counter_shelf.changed[counter.name] = true
    if counter.held > counter.limit then
      counter.excess = counter.held
    end
  end
  book.floors = floors
  for _, counter in pairs(counter_shelf.kept) do
    if counter and counter.committed ~= 0 and counter.limit == LIMIT.UNLIMITED then
      hold(counter, -counter.committed)
      counter.committed = 0
    end
  end
  local more = {}
  for _, charge in ipairs(committed) do
    local amount = charge[3] - counters.of(charge[1], charge[2]).committed
    if amount > 0 then
      more[#more + 1] = { charge[1], charge[2], amount }
    end
  end
  counters.commit(more)
end

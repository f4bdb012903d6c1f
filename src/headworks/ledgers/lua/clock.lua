-- The store's own clock. Everything else asks here, so that tests can put a clock in its place that they move by hand.

local function clock_ms()
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

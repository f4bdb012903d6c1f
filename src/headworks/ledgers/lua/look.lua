-- What is held now, for `headworks ledger show` and `audit`: the records as they are stored, of one instant. ARGV[1]: `all` for
-- what has ended as well.

local ROOT, CHUNK = KEYS[1], 500
local call = redis.call

local function everything(name)
  return call("HGETALL", ROOT .. ":" .. name)
end

-- The lists named after the records of a hash.
local function lists(names, prefix)
  local found = {}
  for at = 1, #names, 2 do
    found[#found + 1] = { names[at], call("ZRANGE", ROOT .. ":" .. prefix .. ":" .. names[at], 0, -1) }
  end
  return found
end

local function records_of(found)
  local records = {}
  for _, one in ipairs(found) do
    local names = one[2]
    for first = 1, #names, CHUNK do
      local last = math.min(first + CHUNK - 1, #names)
      for at, blob in ipairs(call("HMGET", ROOT .. ":entries", unpack(names, first, last))) do
        if blob then
          records[#records + 1] = names[first + at - 1]
          records[#records + 1] = blob
        end
      end
    end
  end
  return records
end

local boots, replicas = everything("boots"), everything("replicas")
local owned = lists(boots, "owned")
local records = ARGV[1] == "all" and everything("entries") or records_of(owned)
local keys = ARGV[1] == "all" and everything("keys") or {}
return {
  call("HGET", ROOT, "book") or "", boots, owned, replicas, lists(replicas, "inside"), records, everything("counters"), keys,
  call("ZRANGE", ROOT .. ":orphans", 0, -1),
}

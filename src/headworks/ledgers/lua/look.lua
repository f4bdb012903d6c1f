-- What is held now, for `headworks ledger show` and `audit`: the records as they are stored, of one instant. ARGV[1]: `all` for
-- what has ended as well.

local ROOT = KEYS[1]

local function everything(name)
  return redis.call("HGETALL", ROOT .. ":" .. name)
end

local is_all = ARGV[1] == "all"
return {
  redis.call("HGET", ROOT, "book") or "", everything("boots"), everything("replicas"), everything("live"),
  everything("counters"), is_all and everything("ended") or {}, is_all and everything("keys") or {},
  everything("sessions"),
}

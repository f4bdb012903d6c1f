-- What comes as one value after another, as a command. The others are written out from `core/commands.py`.

-- The command is made as the record of what it asks for, so that a grant needs no second one (`records.lua`).
READ[CODE.Reserve] = function(_, execution, key, fingerprint, owner, shape, cost_tokens, waiting_tokens, more, slots_tokens, ...)
  return {
    execution = execution, key = key, fingerprint = fingerprint, owner = owner, reserved_by = owner, shape = shape,
    cost_tokens = cost_tokens, waiting_tokens = waiting_tokens, more = more, slots_tokens = slots_tokens, amounts = { ... },
    state = "RESERVED", was = "", seen = false, incarnation = 0, evidence = "", came = 0, entered = 0, orphaned = 0,
    reserved_ms = 0, started_ms = 0, ended_ms = 0, forget_ms = 0, running_sequence = 0, closing_sequence = 0, closing_ms = 0,
    body = nil, is_changed = false, usage = nil, steps = nil,
  }
end

READ[CODE.Stop] = function(_, execution, owner, evidence, ends, usage, used_tokens, commits)
  return {
    execution = execution, owner = owner, evidence = evidence, ["end"] = ends, usage = usage, used_tokens = used_tokens,
    commits = commits,
  }
end

READ[CODE.Grow] = function(_, execution, owner, step, shape, ...)
  return { execution = execution, owner = owner, step = step, shape = shape, amounts = { ... } }
end

READ[CODE.Waits] = function(_, owner, shape, waiting_tokens, ...)
  return { owner = owner, shape = shape, waiting_tokens = waiting_tokens, amounts = { ... } }
end

READ[CODE.Reassert] = function(
  _, execution, key, fingerprint, state, was, seen, owner, reserved_by, shape, usage, evidence, reserved_ms, started_ms,
  ended_ms, ...
)
  return {
    execution = execution, owner = owner,
    record = {
      execution = execution, key = key, fingerprint = fingerprint, state = state, was = was, seen = seen, owner = owner,
      reserved_by = reserved_by, shape = shape, usage = usage, evidence = evidence, reserved_ms = reserved_ms,
      started_ms = started_ms, ended_ms = ended_ms, amounts = { ... },
    },
  }
end

-- What comes as one value after another, as a command. The others are written out from `core/commands.py`.

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

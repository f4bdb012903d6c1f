"""What would have admitted a refused request: the counterfactual, from the comparisons that failed.

A check is passed when its value is within its limit, so each failed one says by how much something had to be less, or its
limit more. Four rules keep the sentence true:

* only checks that refuse count; one that makes requests wait says that it would have had to wait even then;
* where several refused, one remedy of each was needed;
* a predicted wait follows from what is full: where nobody waits ahead room would have done as well, else only patience;
* asking for fewer tokens helps only where every check in the way counts tokens, and nobody waits ahead; where somebody
  did, what was full is not all that was wanting.
"""

from __future__ import annotations

from typing import Any

from headworks.gateway.reply import DECIDED_BY, number

Line = dict[str, Any]
NEVER = "request_exceeds_capacity"
GATE = "class_gate"
FROZEN = "tenant_frozen"
BLIND = "requests waiting at an unknown rate"
REFILLS = "rate_limit_exceeded"
NOBODY_AHEAD_S = 0.0005
"""A predicted wait below it is no wait."""
ELSEWHERE = {
    "ledger_unavailable": "the ledger's answer",
    "no_replica": "an engine of its pool that takes work",
    "draining": "another gateway, as this one was shutting down",
    "gateway_overloaded": "a gateway with less to do",
    "preempted": "nothing more urgent beside it",
}
"""Reasons without a comparison."""
PROMISES = {
    "s to first token": "a promised first token within",
    "s to the whole answer": "a promised answer within",
}
"""By the unit of a predicted time, what would have allowed more of it."""


def remedies(record: Line, others_waited: bool) -> str:
    """One sentence. `record`: a decision of outcome `refuse`; `others_waited`: when it began to wait, others did already."""
    failed = [verdict for verdict in record["verdicts"] if not verdict["passed"]]
    never = [verdict for verdict in failed if verdict["reason"] == NEVER]
    if never:
        return _for_ever(never[-1])
    if record["reason"] == FROZEN:
        return "Nothing but its operator's word would have admitted it: headworks tenant thaw."
    if not failed:
        of_keys = "a key of its own" if record["reason"].startswith("idempotency_") else "another state of things"
        return f"It would have been admitted with {ELSEWHERE.get(record['reason'], of_keys)}."
    if any(verdict["unit"] == "s waited" for verdict in failed):
        return _after_waiting(record, failed, others_waited)
    return _at_once(record, failed, others_waited or _ahead(record))


def subject(scope: str) -> str:
    """`tenant:acme` as `tenant acme`."""
    kind, _, name = scope.partition(":")
    return f"{kind} {name}".strip()


def deciding(record: Line) -> list[Line]:
    """The failed checks that speak for the reason; without a reason, all of them."""
    failed = [verdict for verdict in record["verdicts"] if not verdict["passed"]]
    wanted = DECIDED_BY.get(record["reason"], record["reason"])
    return [verdict for verdict in failed if verdict["reason"] == wanted] if wanted else failed


def _for_ever(verdict: Line) -> str:
    limit, value = number(verdict["limit"]), number(verdict["value"])
    word = "sequence" if verdict["unit"] == "requests" else "token"
    return (
        f"No waiting would have admitted it: only {_fewer(verdict['value'] - verdict['limit'], word)} ({limit} in all), "
        f"or a limit of {value} for {subject(verdict['scope'])}."
    )


def _after_waiting(record: Line, failed: list[Line], ahead: bool) -> str:
    """Its time ran out: everything that was full had to have room in time, or it had to have more time."""
    full = [verdict for verdict in failed if verdict["check"] != "time"]
    limit_s = next(verdict["limit"] for verdict in failed if verdict["unit"] == "s waited")
    longer = f"more than {number(limit_s)} s in which it could have started"
    room = _rooms(full)
    if ahead:
        room = [f"an earlier turn, and {' or '.join(room)}" if room else "an earlier turn"]
    return f"It would have been admitted with {_or([*_smaller(record, full, ahead), *room, longer])}."


def _at_once(record: Line, failed: list[Line], ahead: bool) -> str:
    """It was refused when it came: what refused it had to be otherwise."""
    refused = deciding(record)
    late = [verdict for verdict in failed if verdict["check"] == "time"]
    full = [verdict for verdict in refused if verdict["check"] != "time"]
    waits = [verdict for verdict in failed if verdict["check"] != "time" and verdict not in full]
    if not full:
        room = [] if ahead else [*_smaller(record, waits, ahead), *_rooms(waits)]
        then = "been let wait" if waits and not room else "been admitted"
        return f"It would have {then} with {_or([*room, *_patience(record, late)])}."
    own = _rooms(full)
    if late:
        own = [f"both {' or '.join(own)}; and {' or '.join(_patience(record, late))}"]
    if record["reason"] == REFILLS and record["retry_after_s"] is not None:
        own.append(f"{record['retry_after_s']:.3f} s more, in which its rate refills")
    then = "been let wait" if waits else "been admitted"
    return f"It would have {then} with {_or([*_smaller(record, [*full, *waits], ahead), *own])}."


def _ahead(record: Line) -> bool:
    """Whether anybody waited when it came. The queue's own check counts it as one of those that would."""
    queued = [v["value"] for v in record["verdicts"] if v["unit"] == "queued requests" and v["scope"].startswith("class:")]
    return (record["forecast"]["wait_s"] or 0.0) > NOBODY_AHEAD_S or any(value > 1 for value in queued)


def _smaller(record: Line, full: list[Line], ahead: bool) -> list[str]:
    """A request of fewer tokens, where that alone would have done."""
    work = record["work"]
    if ahead or not full or not all(_counts_tokens(verdict) for verdict in full):
        return []
    excess = max(verdict["value"] - verdict["limit"] for verdict in full)
    if excess >= work["tokens"]:
        return []
    # Memory is taken in whole blocks: what has to be less is known to the block only.
    in_blocks = work.get("kv_tokens") != work["tokens"] and any(verdict["check"] == "memory" for verdict in full)
    return [f"{'about ' if in_blocks else ''}{_fewer(excess, 'token')}"]


def _counts_tokens(verdict: Line) -> bool:
    """Whether what was compared is a sum of tokens with this request's among them, such as `tokens` or `tokens a day`."""
    return verdict["check"] in ("tenant", "memory") and verdict["unit"].split(" ")[0] == "tokens"


def _rooms(full: list[Line]) -> list[str]:
    """Alternatives that would have passed all of these checks."""
    groups = [_room(verdict) for verdict in full]
    if len(groups) < 2:
        return groups[0] if groups else []
    return ["all of this: " + "; and ".join(" or ".join(group) for group in groups)]


def _room(verdict: Line) -> list[str]:
    """What would have passed this check, apart from another request."""
    excess, who, kind = verdict["value"] - verdict["limit"], subject(verdict["scope"]), (verdict["check"], verdict["unit"])
    value = number(verdict["value"])
    if kind == ("memory", "kv_ratio"):
        return [f"the memory of {who} at most {verdict['limit']:.0%} full", f"a kv_ratio_max of {value}"]
    if kind == ("memory", "kv_peak_ratio"):
        return [f"{excess:.0%} less of the memory of {who} to be taken by what runs there"]
    if kind in (("tenant", "tokens"), ("memory", "tokens")):
        where = "by" if verdict["check"] == "tenant" else "in"
        return [f"{_fewer(excess, 'token')} in use {where} {who}", f"a limit of {value} tokens for {who}"]
    if kind in (("tenant", "requests"), ("compute", "requests")):
        where = "for" if verdict["check"] == "tenant" else "in"
        return [f"{_fewer(excess, 'sequence')} running {where} {who}", f"a limit of {value} sequences for {who}"]
    if kind == ("compute", "prompt tokens"):
        return [f"{_fewer(excess, 'token')} of prompts being read in {who}", f"a limit of {value} such tokens"]
    if kind == ("compute", "heavy prompts"):
        return [f"{_fewer(excess, 'long prompt')} being read in {who}", f"a limit of {value} such prompts"]
    if kind == ("fairness", "queued requests"):
        return [f"{_fewer(excess, 'request')} of {who} waiting", f"a queue of {value} requests for {who}"]
    if kind == ("fairness", "queued bytes"):
        return [f"{_fewer(excess, 'byte')} of {who} waiting", f"a queue of {value} bytes for {who}"]
    unit = verdict["unit"].replace("_", " ")
    if verdict["reason"] == GATE:
        return [f"at most {number(verdict['limit'])} {unit}", f"a gate above {value} for {who}"]
    if "_ratio" in verdict["unit"]:
        what = "memory" if verdict["check"] == "memory" else "compute"
        return [f"the {what} of {who} at most {verdict['limit']:.0%} full", "a class that gives way later"]
    return [f"{number(excess)} fewer {unit} for {who}", f"a limit of {value} {unit} for {who}"]


def _patience(record: Line, late: list[Line]) -> list[str]:
    """What would have made up for a predicted wait that was too long."""
    if not late:
        return []
    blind = [verdict for verdict in late if verdict["unit"] == BLIND]
    if blind:
        excess, who = blind[0]["value"] - blind[0]["limit"], subject(blind[0]["scope"])
        return [f"{_fewer(excess, 'request')} waiting for {who}", "a drain rate that had been measured"]
    worst = max(late, key=lambda verdict: float(verdict["value"] - verdict["limit"]))
    excess_s, drain = worst["value"] - worst["limit"], record["forecast"]["drain_tokens_per_s"]
    ahead = f" (about {number(round(excess_s * drain))} tokens)" if drain else ""
    bears = PROMISES.get(worst["unit"], "a client and a class that bear")
    return [f"{number(excess_s)} s less work before it{ahead}", f"{bears} {number(worst['value'])} s of waiting"]


def _fewer(count: float, word: str) -> str:
    return f"{number(count)} fewer {word}{'' if count == 1 else 's'}"


def _or(alternatives: list[str]) -> str:
    *first, last = alternatives
    return f"{', or with '.join(first)}, or with {last}" if first else last

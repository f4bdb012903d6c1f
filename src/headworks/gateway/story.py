"""The records of one request as a person would tell them: what was asked, what decided, what would have helped, what then.

Records are lines of the decision log, as they were read back (F2). Nothing here looks at the gateway as it is now: the
numbers are those that were compared at the time. What would have admitted a refused request is `gateway/remedies.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from headworks.core.metering import WEIGHED
from headworks.core.preempt import PREEMPTED, STOPPED
from headworks.core.reasons import REASONS
from headworks.core.reserves import INSIDE
from headworks.gateway.remedies import BLIND, GATE, NEVER, deciding, remedies, subject
from headworks.gateway.reply import number

Line = dict[str, Any]
COPY = "copy"
"""The kind of line that says which copy is whose (`mirrors.py`)."""
ROUTE = 12
"""Its place in what was asked for."""
AT_ONCE_S = 0.0005
CLOCKS_APART_S = 1.0
"""What one process says by two clocks differs by less."""
WIDE_RATIO = 0.1
"""A rate known less well than this is told as such."""
TOLD_BY_DECISION = frozenset({"refused", "expired"})
"""Outcomes of which the decision has said everything already."""
EVIDENCE = {
    "E0": "nothing had been sent",
    "E1": "the answer ended in band",
    "E2": "the engine showed the aborted end and went on",
    "E3a": "the engine closed its side and its clock went on",
    "E3b": "the engine was counted and holds no more than is known",
    "E4": "another process of the engine answers now",
    "E5": "a hard limit of time passed, which is weak",
    "operator": "an operator said so",
}


def story(lines: Sequence[Line]) -> list[str]:
    """All arrivals among the lines, oldest first: a key may have been used again, and names are the clients' own."""
    arrivals: dict[str, list[Line]] = {}
    copies: dict[str, Line] = {}
    for line in lines:
        if line["kind"] == COPY:
            copies[line["record"]["id"]] = line["record"]
        elif line["kind"] in ("decision", "outcome"):
            arrivals.setdefault(line["record"]["id"], []).append(line)
    told: list[str] = []
    before: Line | None = None
    for its in arrivals.values():
        if before is not None:
            told += ["", _again(before, its[0])]
        told += _arrival(its)
        before = its[-1]
        if (copy := copies.get(before["record"]["id"])) is not None:
            told.append(_copied(copy))
    return told


def _copied(record: Line) -> str:
    if record["copy"]:
        return f"A copy of it went to pool {record['pool']}, as request {record['copy']}."
    return f"A copy of it was to go to pool {record['pool']}, and was left out ({record['left_out']})."


def _again(before: Line, line: Line) -> str:
    """Both are on one clock if one gateway wrote them, which then says what the other clock says; else it was only later."""
    then, now = before["record"], line["record"]
    later_s = line["monotonic_s"] - before["monotonic_s"]
    utc_s = (datetime.fromisoformat(line["utc"]) - datetime.fromisoformat(before["utc"])).total_seconds()
    what = f"The key {now['key'][1]} was used again" if then["key"] == now["key"] else "The same name came again"
    if later_s < 0 or abs(later_s - utc_s) > CLOCKS_APART_S:
        return f"{what}, through another gateway or after a restart:"
    return f"{what} {_seconds(later_s)} later:"


def _arrival(lines: Sequence[Line]) -> Iterator[str]:
    yield _asked(lines[0]["record"], _route(lines))
    decided = [line["record"]["outcome"] for line in lines if line["kind"] == "decision"]
    observed = "refuse" in decided and "admit" in decided[decided.index("refuse") :]
    others = max((line["record"]["position"] - 1 for line in lines if line["kind"] == "decision"), default=0)
    for line in lines:
        if line["kind"] == "decision":
            yield from _decision(line["utc"], line["record"], observed, others)
        else:
            yield from _outcome(line["utc"], line["record"])


def _route(lines: Sequence[Line]) -> str:
    """The path it came by, which its outcome tells."""
    told = [asked[ROUTE] for line in lines if len(asked := line["record"].get("asked") or ()) > ROUTE]
    return f" at {told[0]}" if told and told[0] else ""


def _asked(record: Line, route: str) -> str:
    tenant, key = record["key"]
    work = record["work"]
    named = "" if key == record["id"] else f", key {key}"
    who = f"Request {record['id']} of tenant {tenant} (class {record['service_class']}{named})"
    if work.get("basis") == "shared":
        return f"{who} asked for nothing of its own: somebody had its key already."
    each = f" in each of {work['sequences']} samples" if work["sequences"] > 1 else ""
    written, most = work["output_tokens"], work.get("output_tokens_max", 0)
    output = f"{number(written)} of at most {number(most)}" if written < most else f"at most {number(written)}"
    return (
        f"{who} asked {record['model']}{route} for {number(work['tokens'])} tokens: "
        f"{number(work['prefill_tokens'])} to read and {output} to write{each}."
    )


# decisions


def _decision(utc: str, record: Line, observed: bool, others: int) -> Iterator[str]:
    """`observed`: what was decided was only written down, and the request ran. `others`: how many waited already."""
    # The first decision about an arrival is made in the turn it came in: what that took is the machine's time, nobody waited.
    at_once = record["at_arrival"] or record["waited_s"] < AT_ONCE_S
    waited = "at once" if at_once else f"after waiting {_seconds(record['waited_s'])}"
    if record["outcome"] == "refuse":
        refused = "would have been refused, had anything been enforced" if observed else f"was refused {waited}"
        yield f"{_time(utc)} it {refused}: {_because(record)} ({record['reason']})."
        yield from _refused(record, others > 0)
        if not observed:
            yield from _told(record)
    elif record["outcome"] == "queue":
        crowd = f"{number(others)} {'other' if others == 1 else 'others'}" if others > 0 else "nobody else"
        yield f"{_time(utc)} it had to wait, with {crowd} waiting: {_because(record)}."
        yield from _expected(record["forecast"])
    else:
        where = f"by gateway {record['gateway']} " if "gateway" in record else ""
        yield f"{_time(utc)} it was admitted {waited}, {where}under policy {record['policy_version']}."
        yield from _contract(record)
        if record["at_arrival"]:
            yield from _expected(record["forecast"])


def _contract(record: Line) -> Iterator[str]:
    """What its tenant's contract, or its class's, did for it or against it (B11, B12, B13)."""
    for verdict in record["verdicts"]:
        value, limit, who = _amount(verdict, "value"), _amount(verdict, "limit"), subject(verdict["scope"])
        if verdict["unit"].endswith(INSIDE):
            yield f"It asked inside what is reserved for {who}: {value} of {limit} {verdict['unit'].partition(' ')[0]}."
        elif verdict["unit"] == WEIGHED:
            yield f"{who[0].upper()}{who[1:]} weighed {value} instead of {limit}, for what it had used in half a minute."
        elif verdict["unit"] == STOPPED:
            stopped = verdict["scope"].removeprefix("request:")
            yield f"For it {stopped} was stopped: it had {value} s left to start, less than the {limit} s that allow it."


def _because(record: Line) -> str:
    """The checks that decided; what merely stood in the way as well is told by `_refused`."""
    decided = deciding(record)
    if decided:
        return "; ".join(_said(verdict) for verdict in decided)
    reason = REASONS.get(record["reason"])
    if reason is None:
        return "others were there first"
    sentence = reason.sentence if "{" not in reason.sentence else f"the reason was {reason.code}."
    return sentence[0].lower() + sentence[1:].rstrip(".")


def _said(verdict: Line) -> str:
    """One comparison in words."""
    value, limit, unit = _amount(verdict, "value"), _amount(verdict, "limit"), verdict["unit"].replace("_", " ")
    who = subject(verdict["scope"])
    if verdict["reason"] == NEVER:
        return f"it needs {value} {_plural(unit)}, and {who} can never hold more than {limit}"
    if verdict["reason"] == GATE:
        return f"requests of {who} are refused above {limit} {unit}, and it was {value}"
    words = SAID.get((verdict["check"], verdict["unit"]))
    if words is None and _is_ratio(verdict):
        return f"{_what(verdict)} was {value} full, and new work of its class waits above {limit}"
    if words is None:
        return f"{who} would have {value} {unit}, and may have {limit}"
    return words.format(who=who, value=value, limit=limit)


SAID = {
    ("tenant", "tokens"): "{who} would hold {value} tokens, and may hold {limit}",
    ("tenant", "requests"): "{who} would have {value} sequences running, and may have {limit}",
    ("tenant", "requests while it is frozen"): "{who} was frozen by its operator",
    ("memory", "tokens"): "{who} would hold {value} tokens, and can hold {limit}",
    ("memory", "kv_peak_ratio"): "the memory of {who} would come to be {value} full, and {limit} may be planned with",
    ("memory", "kv_ratio"): "the memory of {who} was {value} full, and new work waits above {limit}",
    ("compute", "requests"): "{who} would run {value} sequences, and runs {limit} at once",
    ("compute", "prompt tokens"): "{who} would be reading {value} tokens of prompts, and reads {limit} at once",
    ("compute", "heavy prompts"): "{who} would be reading {value} long prompts, and reads {limit} at once",
    ("fairness", "requests beside what is kept"): "{who} would run {value} sequences, of {limit} that are not kept for others",
    ("fairness", "tokens beside what is kept"): "{who} would hold {value} tokens, of {limit} that are not kept for others",
    ("fairness", "requests beside what is reserved"): "{who} would run {value} sequences, of {limit} that are nobody's own",
    ("fairness", "tokens beside what is reserved"): "{who} would hold {value} tokens, of {limit} that are nobody's own",
    ("fairness", "requests while others are refused"): (
        "its class would run {value} sequences in {who}, and its share is {limit} while others are refused there"
    ),
    ("fairness", "queued requests"): "{value} requests of {who} would be waiting, and {limit} may",
    ("fairness", "queued bytes"): "{value} bytes of requests of {who} would be waiting, and {limit} may",
    ("time", "s waiting at most"): "it might have had to wait {value} s, and would have been on time within {limit} s only",
    ("time", "s to the whole answer"): "its answer was expected to be whole after {value} s, and is promised within {limit} s",
    ("time", "s to first token"): "its first token was expected after {value} s, and is promised within {limit} s",
    ("time", BLIND): "{value} requests would be waiting with nobody knowing how fast they drain, and {limit} may",
    ("time", "s waited"): "the {limit} s within which it could have started were over",
}
"""By check and unit: `value` is what there would have been with this request, where that is what the check compares."""


def _amount(verdict: Line, field: str) -> str:
    value = verdict[field]
    if value is None:  # what is not finite is null in JSON
        return "without bound"
    return f"{value:.0%}" if _is_ratio(verdict) else number(value)


def _is_ratio(verdict: Line) -> bool:
    """A share of memory or compute; behind its name may stand when it counts, and who says so."""
    return str(verdict["unit"].partition(" ")[0]).endswith("_ratio")


def _what(verdict: Line) -> str:
    """`the compute of pool main (by steps)`."""
    name, _, rest = verdict["unit"].partition("_ratio ")
    what = "compute" if name.startswith("compute") else "memory"
    return f"the {what} of {subject(verdict['scope'])}{f' ({rest})' if rest else ''}"


def _refused(record: Line, others_waited: bool) -> Iterator[str]:
    """What else failed, what was in order, and what would have helped."""
    decided = deciding(record)
    others = [verdict for verdict in record["verdicts"] if not verdict["passed"] and verdict not in decided]
    if others and record["reason"] != NEVER:
        yield f"Also in its way: {'; '.join(_said(verdict) for verdict in others)}."
    passed = [_briefly(verdict) for verdict in record["verdicts"] if verdict["passed"]]
    if passed:
        yield f"In order: {'; '.join(passed)}."
    yield remedies(record, others_waited)


def _told(record: Line) -> Iterator[str]:
    """What its client was told of coming back."""
    later_s = record["retry_after_s"]
    if record["reason"] in REASONS and REASONS[record["reason"]].retry == "never":
        begins = f"; the next period begins {number(round(later_s))} s later" if later_s is not None else ""
        yield f"Its client was told that no retry helps{begins}."
    elif later_s is not None:
        yield f"Its client was told to come back {_seconds(later_s)} later."


def _briefly(verdict: Line) -> str:
    value, limit, unit = _amount(verdict, "value"), _amount(verdict, "limit"), _plural(verdict["unit"].replace("_", " "))
    if _is_ratio(verdict):
        return f"{_what(verdict)} {value} full, up to {limit}"
    if verdict["check"] == "time" and unit.startswith("s "):
        return f"{unit.removeprefix('s ')} {value} s of {limit} s"
    return f"{subject(verdict['scope'])} {value} of {limit} {unit}"


BY_KEY = {
    "attached": "Its key has an execution here: it shares that answer, and nothing is charged for it.",
    "replayed": "Its key has completed: it gets the kept answer again, and nothing runs for it.",
    "key": "Its key alone decided: nothing was compared or predicted.",
}
"""By the basis of the forecast, where there was none to make."""


def _expected(forecast: Line) -> Iterator[str]:
    if forecast["basis"] in BY_KEY:
        yield BY_KEY[forecast["basis"]]
    elif forecast["wait_s"] is None:
        yield "How long that would take was not known: no drain rate had been measured yet."
    else:
        if forecast["basis"] != "room":
            yield f"It was expected to wait {_seconds(forecast['wait_s'])}{_rate(forecast)}."
        yield from _bounds(forecast)


def _rate(forecast: Line) -> str:
    """The drain rate, and how well it is known (C4)."""
    drain, error_ratio = forecast["drain_tokens_per_s"], forecast.get("drain_error_ratio")
    if not drain:
        return ""
    wide = " (known only to" if error_ratio is not None and error_ratio > WIDE_RATIO else " (known to"
    known = "" if error_ratio is None else f"{wide} ±{error_ratio:.0%})"
    return f", at {number(round(drain))} tokens a second{known}"


def _bounds(forecast: Line) -> Iterator[str]:
    """How soon the first token and the whole answer were expected, and how much of that is the margin (C3)."""
    ttft_s, total_s = forecast["ttft_s"], forecast.get("total_s")
    if ttft_s is None:
        return
    buffer_ratio = forecast.get("buffer_ratio")
    margin = f", {buffer_ratio:.2f} times what was fitted" if buffer_ratio else ""
    first = f"Its first token was expected within {_seconds(ttft_s)}{margin}"
    if total_s is None:
        yield f"{first}."
        return
    yield f"{first}; its answer within {_seconds(total_s)}, at {forecast['tpot_s'] * 1000:.1f} ms a token."


# how it ended


def _outcome(utc: str, record: Line) -> Iterator[str]:
    if record["outcome"] in TOLD_BY_DECISION and record["admitted_s"] is None:
        return
    took = _seconds(record["ended_s"] - record["arrived_s"])
    reason = f" ({record['reason']})" if record["reason"] else ""
    ended = (
        PREEMPTED_SAID if record["reason"] == PREEMPTED else ENDED.get(record["outcome"], f"it ended as {record['outcome']}")
    )
    yield f"{_time(utc)} {ended}{reason}, {took} after it came."
    if record["first_byte_s"] is not None:
        promise = "" if record["outcome"] != "completed" else f", {'within' if record['in_slo'] else 'outside'} its promises"
        yield f"Its first byte came after {_seconds(record['first_byte_s'] - record['arrived_s'])}{promise}."
    if record["outcome"] == "replayed" and record.get("execution"):
        yield f"It was given the answer of the execution {record['execution']}."
    yield from _used(record)
    yield from _grown(record)
    if record["evidence"]:
        unconfirmed_s = record["unconfirmed_s"]
        when = f" {_seconds(unconfirmed_s)} after nobody wanted it any more" if unconfirmed_s is not None else ""
        proof = EVIDENCE.get(record["evidence"], "")
        yield f"What it held was given back whole{when}, on evidence {record['evidence']}: {proof}."


ENDED = {
    "completed": "its answer was complete",
    "failed": "it failed",
    "cancelled": "its client had left",
    "refused": "it was refused after it had been admitted",
    "expired": "its time was over after it had been admitted",
    "replayed": "it was given the answer its key had already",
}


PREEMPTED_SAID = "it was stopped to make room for one with less time left"


def _used(record: Line) -> Iterator[str]:
    usage = record["usage"]
    if usage is not None:
        exact = "" if usage["exact"] else " (counted on the way, as the engine did not tell)"
        yield (
            f"It used {number(usage['prompt_tokens'])} tokens read and {number(usage['output_tokens'])} written "
            f"of the {number(record['work']['tokens'])} set aside{exact}."
        )


def _grown(record: Line) -> Iterator[str]:
    """What was set aside while it ran, and what was asked for in vain (A8)."""
    granted, refused = record.get("growths", 0), record.get("growths_refused", 0)
    if granted:
        before = record["work"]["tokens"] - record["grown_tokens"]
        steps = f"{granted} step{'' if granted == 1 else 's'}"
        grown = f"{number(record['grown_tokens'])} in {steps} while it did"
        yield f"Of these, {number(before)} were set aside before it ran and {grown}."
    if refused:
        ended = ", so its answer was ended there" if record["outcome"] == "completed" and record["reason"] else ""
        yield f"It asked for more {refused} time{'' if refused == 1 else 's'} in vain{ended}."


def _time(utc: str) -> str:
    """`2026-11-29T23:59:59.123456Z` to the millisecond."""
    return f"At {utc[:10]} {utc[11:23]} UTC" if len(utc) > 23 else f"At {utc}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"


def _plural(unit: str) -> str:
    return "sequences" if unit == "requests" else unit

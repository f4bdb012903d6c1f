"""`headworks explain ID`: the story of one request, from the decision log of a running gateway (F2, K05).

Each decision is told with everything that was compared, what decided, and what would have let the request run; then how
it ended, what it used of what was set aside, and on which evidence that was given back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, admin_port
from headworks.core.reasons import REASONS

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""What a request, a key or an execution may be called; nothing else is ever written down."""
OUTCOMES = {"admit": "admitted", "queue": "queued", "refuse": "refused"}
COUNTED = ("tokens", "requests", "queued", "retries", "money")
"""How the units of checks begin whose value is a sum that a smaller request, or less before it, would make smaller."""
EVIDENCE = {
    "E0": "nothing had been sent",
    "E1": "the answer ended in band",
    "E2": "the engine showed the aborted end and went on",
    "E3a": "the engine closed its side and its clock went on",
    "E3b": "the engine was counted and holds no more than is known",
    "E4": "another process of the engine answers now",
    "E5": "a hard limit of time passed: weak",
    "operator": "an operator said so",
}


def explain(
    name: Annotated[str, typer.Argument(metavar="ID", help="A request id, an Idempotency-Key, a decision or an execution.")],
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of one request: what was compared with what, and what would have helped.

    Exit: 0 it is known, 1 nothing is known by that name, 2 the gateway could not be asked.
    """
    port = admin_port(admin, config)
    found: dict[str, Any] = {"id": name, "records": []}
    if NAME.fullmatch(name):
        _, found = port.get(f"/admin/explain/{name}")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif found["records"]:
        typer.echo("\n".join(story(found["records"])))
    else:
        typer.echo(f"nothing is known of {name}: it never came here, it is older than the log, or no decision log is kept")
    raise typer.Exit(0 if found["records"] else 1)


def story(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The records of one name, oldest first, as sentences. Several requests may have shared it."""
    known: set[str] = set()
    for line in lines:
        record = line["record"]
        if record["id"] not in known:
            known.add(record["id"])
            yield from _subject(line["kind"], record)
        yield from (_decision if line["kind"] == "decision" else _outcome)(line["utc"], record)


def _subject(kind: str, record: dict[str, Any]) -> Iterator[str]:
    tenant, key = record["key"]
    work = record["work"]
    yield f"{record['id']} (key {key}) of tenant {tenant}, class {record['service_class']}, model {record['model']}"
    sequences = work["sequences"]
    each = f" in each of {sequences} samples" if sequences > 1 else ""
    yield (
        f"  asked for {work['tokens']:,} tokens: {work['prefill_tokens']:,} to read"
        f" and at most {work['output_tokens']:,} to write{each}"
    )
    if kind == "decision":
        yield f"  decided by gateway {record['gateway']} under policy {record['policy_version']}"


def _decision(utc: str, record: dict[str, Any]) -> Iterator[str]:
    reason = record["reason"]
    said = OUTCOMES[record["outcome"]]
    waited = f" after {record['waited_s']:.3f} s" if record["waited_s"] >= 0.0005 else ""
    place = f", {record['position']} waiting with it" if record["outcome"] == "queue" else ""
    yield f"{utc} {said}{waited}{': ' + reason if reason else ''}{place}"
    for verdict in record["verdicts"]:
        yield f"  {'passed' if verdict['passed'] else 'FAILED'} {_compared(verdict)}"
    yield from _forecast(record["forecast"])
    if record["outcome"] == "refuse":
        yield from _counterfactual(record)


def _compared(verdict: dict[str, Any]) -> str:
    unit = verdict["unit"].replace("_", " ")
    return f"{verdict['check']} of {verdict['scope']}: {_number(verdict['value'])} of {_number(verdict['limit'])} {unit}"


def _forecast(forecast: dict[str, Any]) -> Iterator[str]:
    if forecast["basis"] == "room":
        yield f"  predicted: no wait, first token after {forecast['prefill_s']:.3f} s"
    elif forecast["wait_s"] is None:
        yield "  predicted: nothing, as no drain rate had been measured yet"
    else:
        drain = f", draining {forecast['drain_tokens_per_s']:,.0f} tokens/s" if forecast["drain_tokens_per_s"] else ""
        yield f"  predicted: {forecast['wait_s']:.3f} s of waiting, first token after {forecast['ttft_s']:.3f} s{drain}"


def _counterfactual(record: dict[str, Any]) -> Iterator[str]:
    """What would have let it run, from the checks that failed; and when the client was told to come back."""
    failed = [verdict for verdict in record["verdicts"] if not verdict["passed"]]
    for verdict in failed:
        yield f"  it would have passed {verdict['check']} with {_help(verdict)}"
    if not failed:
        yield f"  no check failed; {_why(record['reason'])}"
    if REASONS[record["reason"]].retry == "never":
        renewed_s = record["retry_after_s"]
        renewed = f"; the next period begins {renewed_s:,.0f} s later" if renewed_s is not None else ""
        yield f"  its client was told that no retry helps{renewed}"
    elif record["retry_after_s"] is not None:
        yield f"  its client was given a slot {record['retry_after_s']:.3f} s later"


def _why(reason: str) -> str:
    sentence = REASONS[reason].sentence
    return sentence if "{" not in sentence else f"the reason was {reason}"


def _help(verdict: dict[str, Any]) -> str:
    value, limit, unit = verdict["value"], verdict["limit"], verdict["unit"].replace("_", " ")
    excess = value - limit
    if unit.startswith(COUNTED):
        return f"{_number(excess)} fewer {unit} asked or held, or a limit of {_number(value)}"
    if unit.startswith("s "):
        return (
            f"{_number(excess)} s less of {'waiting' if unit == 's waited' else 'work ahead'}, or a limit of {_number(value)} s"
        )
    return f"{_number(value)} at or below {_number(limit)}"


def _outcome(utc: str, record: dict[str, Any]) -> Iterator[str]:
    reason = f": {record['reason']}" if record["reason"] else ""
    yield f"{utc} {record['outcome']}{reason} after {record['ended_s'] - record['arrived_s']:.3f} s"
    if record["first_byte_s"] is not None:
        yield f"  first byte after {record['first_byte_s'] - record['arrived_s']:.3f} s"
    usage = record["usage"]
    if usage is not None:
        exact = "" if usage["exact"] else " (counted on the way, not told by the engine)"
        used = f"{usage['prompt_tokens']:,} tokens read and {usage['output_tokens']:,} written"
        yield f"  used {used} of {record['work']['tokens']:,} set aside{exact}"
    if record["evidence"]:
        unconfirmed = record["unconfirmed_s"]
        when = f", {unconfirmed:.3f} s after it was unwanted" if unconfirmed is not None else ""
        yield f"  given back whole on {record['evidence']}: {EVIDENCE[record['evidence']]}{when}"


def _number(value: float | None) -> str:
    if value is None:  # what is not finite is null in JSON
        return "no bound"
    return f"{int(value):,}" if value == int(value) else f"{value:,.3f}"

"""Examines one engine as it stands: what headworks would build on, tried on the engine itself (F6).

First it only looks: its series, its flags as far as they show, whether anybody uses it. Then, if nobody does, it sends some
dozens of small requests and one long prompt, leaves most of them, and watches the gauges. What an adapter says an engine can
prove is a claim; the evidence in the report is what held here. Everything is bounded: the looking by `watch_s`, the whole by
`limit_s`, what is sent by `times` and `streams`. An engine that others use is left alone unless `busy_ok`, and then
what needs to be alone in it is not tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headworks.engines.endpoint import Endpoint
from headworks.engines.kinds import ENGINES
from headworks.engines.pool import Pool
from headworks.tools.doctor_answers import Measured, body_finding, step_finding, stream_findings
from headworks.tools.doctor_look import Watched, flags_seen, incarnation_finding, load_finding, series_finding, watched
from headworks.tools.doctor_report import BROKEN, NOTE, UNKNOWN, Finding, Report
from headworks.tools.doctor_stops import NAMES, Rounds, crowd_findings, rounds_of, stop_finding
from headworks.tools.doctor_wire import Ward
from headworks.tools.engine_probe import Found, probe

CONTEXT_TOKENS_UNKNOWN = 2_048
TIMES = {"close": 3, "body": 1}
"""How often each kind of leaving is tried, beside the half-close, which is what service rests on."""
NOT_STREAMED_ELSEWHERE = "headworks streams from it whatever its client asked for"
EXAMINED = {"vllm": "0.32.0", "llamacpp": "0c1e570", "sglang": ""}
"""The versions whose behaviour the adapters were written by; SGLang's from its source alone."""

Tell = Callable[[str], None]


@dataclass(slots=True)
class Order:
    """What to examine, and how far to go."""

    url: str
    api_key: str | None = None
    watch_s: float = 3.0
    limit_s: float = 120.0
    times: int = 20
    """Half-closed requests: the more of them stopped, the better the proof."""
    streams: int = 64
    """The crowd that finds its places and its busy answer; 0: none."""
    passive: bool = False
    """Only look."""
    busy_ok: bool = False
    ca: str | None = None
    """A file with the authorities that verify it, over https."""
    seed: int = 1


async def examine(order: Order, tell: Tell = lambda line: None) -> Report:
    """The whole examination. Raises `EngineError` where there is no engine."""
    begun_s = time.monotonic()
    found = await probe(order.url, order.api_key, time.monotonic, order.ca)
    engine = ENGINES[found.kind]("doctor", order.url, time.monotonic, order.api_key, ca=order.ca)
    capacity = await engine.describe()
    context_tokens = found.context_tokens or CONTEXT_TOKENS_UNKNOWN
    rng = Random(f"doctor {order.seed} {time.time_ns()}")  # noqa: S311 (words that no cache knows, not a secret)
    plain = Pool(Endpoint(order.url, order.api_key, order.ca), time.monotonic)
    ward = Ward(engine, order.url, order.api_key, found.kind, found.models[0], context_tokens, plain, rng)
    try:
        tell(f"looking at {found.product} for {order.watch_s:g} s")
        seen = await watched(ward, order.watch_s)
        report = Report(order.url, found, [], await flags_seen(ward, seen.after, capacity.version))
        report.findings = [
            version_finding(found, capacity.version),
            series_finding(found.kind, seen.after, found.notes),
            incarnation_finding(seen, (await engine.describe()).incarnation),
            load_finding(seen),
        ]
        if order.passive or (seen.is_busy and not order.busy_ok):
            report.is_busy = seen.is_busy and not order.passive
            report.findings.append(_left_alone(seen, order))
        else:
            await _in_time(order, ward, report, seen, tell)
    finally:
        await ward.close()
    report.took_s = time.monotonic() - begun_s
    return report


def version_finding(found: Found, version: str) -> Finding:
    """Whether it is a version that somebody has looked at before."""
    known = EXAMINED.get(found.kind)
    if known is None:
        return Finding("version", NOTE, f"{found.product}: only what it says in its answers can be relied on (E1)")
    if known and known in version:
        return Finding("version", NOTE, f"{found.product}: the version its adapter was written by")
    told = f"was written by {known}" if known else "was written from the source"
    return Finding("version", NOTE, f"{found.product}: its adapter {told}; what follows is what this one does")


def _left_alone(seen: Watched, order: Order) -> Finding:
    if order.passive:
        return Finding("requests", NOTE, "none were sent: --passive")
    saw = f"others use it (up to {seen.running_max} run, {seen.waiting_max} wait): nothing was sent"
    return Finding(
        "requests", UNKNOWN, saw, "ask again when it is idle; or --busy-ok: a few small requests, and no stops tried"
    )


async def _in_time(order: Order, ward: Ward, report: Report, seen: Watched, tell: Tell) -> None:
    """What is not done by its end is not measured, and says so."""
    measured, made = Measured(), len(report.findings)
    try:
        async with asyncio.timeout(order.limit_s):
            await _active(order, ward, report, seen, measured, tell)
    except TimeoutError:
        done = {finding.check for finding in report.findings[made:]}
        late = ", ".join(name for name in NAMES.values() if name not in done)
        report.findings.append(Finding("time", UNKNOWN, f"{order.limit_s:g} s were over; not measured: {late or 'the crowd'}"))
    report.evidence = evidence_of(report, measured)
    report.evidence_min = "E3" if {"E3a", "E3b"} & set(report.evidence) else "E1"


async def _active(order: Order, ward: Ward, report: Report, seen: Watched, measured: Measured, tell: Tell) -> None:
    add = report.findings.append
    tell("asking for one answer in one piece, and one stream")
    add(await body_finding(ward, measured, report.flags))
    if not measured.answers_whole:
        return
    report.findings += await stream_findings(ward, measured, report.flags)
    if seen.is_busy:
        add(Finding("stops", UNKNOWN, "not tried: others use it, and whose request the gauges show cannot be told"))
        return
    tell("asking for a long prompt to be read")
    add(await step_finding(ward, measured, report.flags))
    for how, times in {"half": order.times, **TIMES}.items():
        tell(f"leaving {times} requests: {NAMES[how]}")
        rounds = await rounds_of(ward, measured, how, times)
        if how == "half":
            measured.stops = rounds.stopped
        add(_judged(ward, stop_finding(rounds, how), rounds, how))
    if order.streams and not any(finding.outcome == BROKEN for finding in report.findings):
        tell(f"{order.streams} streams at once, then leaving them all")
        streams = min(order.streams, report.found.running_max or order.streams) if ward.kind == "llamacpp" else order.streams
        report.findings += await crowd_findings(ward, streams, report.flags)
    elif order.streams:
        add(Finding("places", UNKNOWN, "not tried: something is broken that a crowd would make worse"))


def _judged(ward: Ward, finding: Finding, rounds: Rounds, how: str) -> Finding:
    """llama.cpp is known to notice a departure without a stream late: its adapter streams, so nothing is lost by it."""
    if ward.kind == "llamacpp" and how == "body" and finding.outcome == BROKEN:
        return Finding(finding.check, NOTE, f"late, as is known of it ({NOT_STREAMED_ELSEWHERE})", figures=finding.figures)
    return finding


def evidence_of(report: Report, measured: Measured) -> tuple[str, ...]:
    """The levels the adapter claims that held here."""

    def held(check: str) -> bool:
        finding = report.finding(check)
        return finding is not None and finding.outcome == "holds"

    stops = held(NAMES["half"])
    holds = {
        "E1": measured.answers_whole,
        "E3a": stops and held("clock"),
        "E3b": measured.stops and measured.gauges_follow is True,
        "E4": held("incarnation"),
    }
    return tuple(level for level in report.found.evidence if holds.get(level, False))

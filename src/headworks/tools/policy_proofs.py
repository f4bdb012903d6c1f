"""The boxes of the page: cancellation, and what is to be seen before production: pass, fail, or not measurable here and why."""

from __future__ import annotations

from headworks.core.reasons import REASONS
from headworks.tools.doctor_report import BROKEN, HOLDS, Finding
from headworks.tools.doctor_stops import NAMES, stop_finding
from headworks.tools.policy_facts import FAIL, NOT_MEASURABLE, PASS, Box, Facts
from headworks.tools.policy_probe import Served, Through

CANCELLATION, CHECKLIST = "Cancellation propagation", "Validation checklist"
OUTCOMES = {HOLDS: PASS, BROKEN: FAIL}
KV_BACK_RATIO = 0.001
"""Of the memory: what a stopped request may still show in its gauge."""
ON_TIME_RATIO = 0.99
REFUSED_MIN = 20
"""Fewer refusals than this say nothing of how their clients come back."""
STORM_TIMES = 1.2
"""What the fullest second of retries may be, against the most that was served in a second."""
DRAIN_ERROR_MAX = 0.2
"""A rate that is known less well than the peak may be off by says nothing of the peak."""
OFFERED_MIN = 20
"""Of fewer requests than this a percentile says nothing."""


def boxes(facts: Facts) -> list[Box]:
    """All eleven, in the page's order."""
    return [*_cancellation(facts), *_checklist(facts)]


def _cancellation(facts: Facts) -> list[Box]:
    """Each line by its effect in this engine: how its server is written cannot be seen, and does not matter."""
    close, body, half = (facts.finding(NAMES[how]) for how in ("close", "body", "half"))
    lines = (
        ("ASGI middleware preserves http.disconnect (no buffering middleware)", close),
        ("API server calls await request.is_disconnected() in streaming loop", half),
        ("On True: await engine.abort(request_id) at iteration boundary", half),
    )
    found = [_by_finding(facts, line, finding) for line, finding in lines]
    if body is not None and body.outcome == BROKEN:
        found[0] = Box(CANCELLATION, lines[0][0], FAIL, f"without a stream: {body.saw}")
    return [*found, _memory_back(facts, half)]


def _by_finding(facts: Facts, line: str, finding: Finding | None) -> Box:
    if finding is None:
        why = facts.reason("report") if facts.report is None else _why_untried(facts)
        return Box(CANCELLATION, line, NOT_MEASURABLE, why)
    return Box(CANCELLATION, line, OUTCOMES.get(finding.outcome, NOT_MEASURABLE), f"tried on the engine itself: {finding.saw}")


def _why_untried(facts: Facts) -> str:
    """The engine's examination ended before it: by what it says itself."""
    assert facts.report is not None
    told = [
        one.saw for one in facts.report.findings if one.check in ("requests", "stops", "time", "answer in one piece", "stream")
    ]
    return told[-1] if told else "it was not tried"


def _memory_back(facts: Facts, half: Finding | None) -> Box:
    line = "KV blocks freed to PagedAttention pool at next step boundary"
    if half is None or half.outcome != HOLDS:
        return _by_finding(facts, line, half)
    kept = half.figures.get("kv_kept_max_ratio")
    if not isinstance(kept, float):
        return Box(CANCELLATION, line, NOT_MEASURABLE, "the engine has no gauge of its memory")
    evidence = f"its gauge was back within {kept:.2%} of what it showed before, in the look that showed the request gone"
    return Box(CANCELLATION, line, PASS if kept <= KV_BACK_RATIO else FAIL, evidence)


def _checklist(facts: Facts) -> list[Box]:
    through = facts.through
    base_line = "Replica baseline measured"
    if through is None:
        why = facts.reason("through")
        tried = [
            (base_line, NOT_MEASURABLE, why),
            ("Chunked-prefill tuned baseline satisfies the SLO without multi-GPU", NOT_MEASURABLE, why),
            ("Admission control rejects at W_est > the TTFT SLO in a load test", NOT_MEASURABLE, why),
            ("Client disconnect → engine.abort() → KV blocks freed", NOT_MEASURABLE, why),
            ("Fallback cascade tested", NOT_MEASURABLE, why),
            ("Retry storm simulated", NOT_MEASURABLE, why),
        ]
    else:
        tried = [
            _baseline(facts, through.base, base_line),
            _chunked(facts),
            _rejects(facts, through),
            _disconnect(through),
            _cascade(facts, through),
            _storm(through),
        ]
    tried.append(_cost_model(facts))
    return [Box(CHECKLIST, *one) for one in tried]


Line = tuple[str, str, str]


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1000:.0f} ms"


def _baseline(facts: Facts, base: Served, line: str) -> Line:
    section = facts.policy.classes[facts.service_class]
    said = (
        f"at {base.requests_per_s:.2f} requests/s through the policy: p95 TTFT {_ms(base.ttft_p95_s)}, p95 TPOT"
        f" {_ms(base.tpot_p95_s)}, p99 E2E {_ms(base.e2e_p99_s)}, goodput {base.goodput_ratio:.1%} of {base.offered}"
    )
    if base.offered < OFFERED_MIN:
        return line, NOT_MEASURABLE, f"too few for percentiles, give it more time with --burst: {said}"
    stated = facts.config.classes[facts.service_class].slo.goodput_ratio or 0.0
    kept = (
        base.goodput_ratio >= stated
        and _within(base.ttft_p95_s, section.ttft_slo_s)
        and _within(base.tpot_p95_s, section.tpot_slo_s)
        and _within(base.e2e_p99_s, section.e2e_slo_s)
    )
    return line, PASS if kept and base.complete else FAIL, said


def _within(value_s: float | None, promise_s: float | None) -> bool:
    return promise_s is None or (value_s is not None and value_s <= promise_s)


def _chunked(facts: Facts) -> Line:
    line = "Chunked-prefill tuned baseline satisfies the SLO without multi-GPU"
    if facts.measured is None:
        return line, NOT_MEASURABLE, facts.reason("measured")
    value, how = facts.flag("--enable-chunked-prefill")
    kept_per_s, tried_per_s = facts.measured.saturation_per_s, facts.measured.rates[-1].requests_per_s
    chunked = f"chunked prefill: {value} ({how})" if value else "chunked prefill is not visible"
    if kept_per_s is None and facts.measured.rates[-1].offered < OFFERED_MIN:
        return line, NOT_MEASURABLE, "too few requests were sent at each rate: give it more --minutes"
    if kept_per_s is None:
        return line, FAIL, f"one replica was late even at {tried_per_s:.2f} requests/s; {chunked}"
    kept = f"{ON_TIME_RATIO:.0%} of first tokens within {facts.measured.ttft_slo_s:g} s"
    return line, PASS, f"one replica had {kept} at {kept_per_s:.2f} requests/s; {chunked}"


def _rejects(facts: Facts, through: Through) -> Line:
    line = "Admission control rejects at W_est > the TTFT SLO in a load test"
    section, burst = facts.policy.classes[facts.service_class], through.burst
    reasons = ", ".join(f"{count} {code}" for code, count in sorted(burst.refused.items(), key=lambda pair: -pair[1]))
    said = (
        f"at {burst.requests_per_s:.2f} requests/s {burst.refusals} of {burst.offered} were refused ({reasons or 'none'}),"
        f" those admitted had p95 TTFT {_ms(burst.ttft_p95_s)}"
    )
    if section.ttft_slo_s is None:
        return line, NOT_MEASURABLE, f"class {facts.service_class} promises no first token; {said}"
    if burst.offered < OFFERED_MIN:
        return line, NOT_MEASURABLE, f"too few to be a burst, give it more time with --burst: {said}"
    known = all(code in REASONS for code in burst.refused)
    kept = burst.refusals > 0 and known and _within(burst.ttft_p95_s, section.ttft_slo_s)
    return line, PASS if kept else FAIL, said


def _disconnect(through: Through) -> Line:
    line = "Client disconnect → engine.abort() → KV blocks freed"
    finding = stop_finding(through.stops, "close")
    return line, OUTCOMES.get(finding.outcome, NOT_MEASURABLE), f"clients of the gateway that hung up: {finding.saw}"


def _cascade(facts: Facts, through: Through) -> Line:
    line = "Fallback cascade tested: 429 → model cascade → quality degradation → cache"
    steps = [step.action for step in facts.policy.classes[facts.service_class].on_pressure]
    seen = f"429 was seen {through.burst.refusals} times"
    if steps:
        return (
            line,
            NOT_MEASURABLE,
            f"{seen}; {', '.join(steps)} are set up and begin under pressure held for a while: longer load",
        )
    return line, NOT_MEASURABLE, f"{seen}; nothing else is set up for class {facts.service_class}"


def _storm(through: Through) -> Line:
    storm = through.storm
    line = f"Retry storm simulated: {storm.clients} clients × 3 retries → no synchronized spike"
    said = (
        f"{storm.refused_first} of {storm.clients} were refused and came back as they were told: {storm.retries} retries,"
        f" {storm.retries_peak} in their fullest second; {storm.answers_peak} answers in its"
    )
    if storm.refused_first < REFUSED_MIN:
        return line, NOT_MEASURABLE, f"too few were refused for a storm: {said}"
    if storm.retries < REFUSED_MIN:
        return line, NOT_MEASURABLE, f"too few came back while it was watched, for {storm.storm_s:.0f} s: {said}"
    if storm.retries_peak <= STORM_TIMES * storm.answers_peak:
        return line, PASS, said
    error_ratio = storm.drain_error_ratio
    if error_ratio is None or error_ratio > DRAIN_ERROR_MAX:  # they came back as densely as the rate was believed to be
        known = "not" if error_ratio is None else f"to ±{100.0 * error_ratio:.0f} % only"
        return line, NOT_MEASURABLE, f"the gateway knew its drain rate {known}: load it for longer (--burst); {said}"
    return line, FAIL, said


def _cost_model(facts: Facts) -> Line:
    line = "Cost model validated against one week of production traffic replay"
    if facts.config.pools[facts.pool].gpu_price_per_h is None:
        return line, NOT_MEASURABLE, f"pools.{facts.pool}.gpu_price_per_h states no price"
    if facts.traffic is None:
        return line, NOT_MEASURABLE, facts.reason("traffic")
    days = facts.traffic.log_s / 86_400
    if not facts.traffic.is_a_week:
        return line, NOT_MEASURABLE, f"the decision log has {days:.1f} days; it takes a week of it, then `headworks plan`"
    return line, NOT_MEASURABLE, f"the log has {days:.1f} days: `headworks plan` replays it; compare its tokens with the bill"

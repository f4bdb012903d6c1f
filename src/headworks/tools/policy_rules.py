"""The second half of the page: what admits and refuses, who waits how long, what is tried before a refusal, what it costs."""

from __future__ import annotations

from headworks.core.buckets import size
from headworks.core.policy import ClassPolicy, RatePolicy
from headworks.tools.policy_facts import CONFIG, ENGINE, MEASURED, PHYSICS, Facts, Field, Sheet

ENGINE_FLAGS = (
    "--max-num-seqs",
    "--max-num-active-seqs",
    "--max-num-batched-tokens",
    "--enable-chunked-prefill",
    "--max-num-queued-reqs",
    "--max-num-queued-tokens",
)
FLAG_CHANGE = {
    "--max-num-seqs": "memory that does not hold so many sequences",
    "--max-num-active-seqs": "first tokens that wait although places are free",
    "--max-num-batched-tokens": "a step longer than streams, and the proof of a stop, can bear",
    "--max-num-queued-reqs": "the pool's active_requests_max: it is a second wall behind it",
}
CLIENT_RETRIES, CLIENT_FACTOR, CLIENT_JITTER = 3, 1.5, 0.2
"""As `headworks.client` and the SDKs before it do; a test holds them to the client's own."""
ALERTS = (
    ("num_requests_waiting", "> 10", "for 30 s", "HeadworksQueueLong"),
    ("kv_cache_usage", "> 0.90", "for 60 s", "HeadworksMemoryFull"),
    ("num_preemptions_total rate", "> 1", "per minute", "HeadworksEnginePreempts"),
    ("429 rate", "> 5", "per s", "HeadworksRefusing"),
)
"""Of `dashboards/alerts.yaml`; a test holds them to it."""
GOODPUT_RATIO = 0.9
NAIVE_S, NAIVE_WASTED_RATIO = 600.0, 0.9
"""Ten minutes of a burst into an unbounded queue, of which nine tenths are generated for nobody: an assumption, and said so."""


def rule_fields(facts: Facts) -> list[Field]:
    """Section by section, in the page's order."""
    sheets = (_flags(facts), _checks(facts), _timeouts(facts), _fallback(facts), _retries(facts), _alerts(facts), _cost(facts))
    return [field for sheet in sheets for field in sheet.fields]


def _flags(facts: Facts) -> Sheet:
    sheet, (version, how) = Sheet("Admission control: engine flags"), facts.flag("version")
    if version is None:
        sheet.unknown("Pinned engine version", "", how)
    else:
        assert facts.report is not None
        sheet.known("Pinned engine version", facts.report.found.product, "", ENGINE, how, "another version: `headworks doctor`")
    for name in ENGINE_FLAGS:
        value, how = facts.flag(name)
        if value is None:
            why = how or "its pages do not show it: read it where the engine is started"
            sheet.unknown(name, "", why, FLAG_CHANGE.get(name, ""))
        else:
            sheet.known(name, value, "", MEASURED, how, FLAG_CHANGE.get(name, ""))
    return sheet


def _checks(facts: Facts) -> Sheet:
    sheet, pool = Sheet("Admission control: checks"), facts.policy.pools[facts.pool]
    for name, tenant in list(facts.policy.tenants.items())[:20]:
        where = f"tenants.{name}.rate"
        _rates(sheet, f"1. Token bucket of {name}", tenant.rate, where)
    found = None if facts.report is None else facts.report.found
    for unit, limit, stated in (
        ("tokens", pool.active_tokens_max, None if found is None else found.kv_tokens),
        ("sequences", pool.active_requests_max, None if found is None else found.running_max),
    ):
        name, change = f"Most {unit} at once", "memory, and the promises on tokens"
        if limit is not None:
            sheet.known(name, limit, unit, CONFIG, f"pools.{facts.pool}", change)
        elif stated is not None:
            sheet.known(name, stated * facts.replicas, unit, ENGINE, "auto: as the engines say", change)
        else:
            sheet.unknown(
                name, unit, "auto: no engine has stated it; it is found while it runs (headworks_limit_running)", change
            )
    for name, section in facts.policy.classes.items():
        if section.ttft_slo_s is None:
            sheet.unknown(f"2. Predictive TTFT, class {name}", "s", "it promises no first token, so none is predicted for it")
            continue
        how = f"classes.{name}.slo.ttft_s: W_est + prefill above it is HTTP 429 queue_delay_exceeded"
        sheet.known(f"2. Predictive TTFT, class {name}", section.ttft_slo_s, "s", CONFIG, how, "the promise")
        sheet.known(f"4. Queue ingress deadline, class {name}", *ingress_s(facts, section))
    how = f"pools.{facts.pool}.kv_ratio_max: above it a request waits, if that helps before its deadline, else is refused"
    sheet.known("3. KV headroom", pool.kv_ratio_max, "ratio", CONFIG, how, "preemptions: lower; memory never used: higher")
    sheet.known(
        "Order of who waits", pool.discipline.kind, "", CONFIG, f"pools.{facts.pool}.discipline", "who is to be fair to whom"
    )
    sheet.known(
        "Least proof of a stop", pool.evidence_min, "", CONFIG, f"pools.{facts.pool}.evidence_min", "an engine that gives less"
    )
    return sheet


def _rates(sheet: Sheet, name: str, rate: RatePolicy | None, where: str) -> None:
    rate = rate or RatePolicy()
    for unit, per_s, burst in (
        ("tokens", rate.tokens_per_s, rate.burst_tokens),
        ("requests", rate.requests_per_s, rate.burst_requests),
    ):
        if per_s is None:
            sheet.known(f"{name}, {unit}", "no limit", "", CONFIG, f"{where} states none", "one tenant that crowds out others")
        else:
            sheet.known(f"{name}, rate", per_s, f"{unit}/s", CONFIG, where, "what the tenant has paid for")
            sheet.known(f"{name}, burst", size(per_s, burst), unit, CONFIG, where, "how unevenly it asks")


def ingress_s(facts: Facts, section: ClassPolicy) -> tuple[float, str, str, str, str]:
    """Value, unit, source, how and what would change it."""
    promise_s, alone_s = section.ttft_slo_s or 0.0, None if facts.measured is None else facts.measured.ttft_base_s
    prefill_s = alone_s or 0.0
    value = min(max(0.0, promise_s - prefill_s), section.wait_s_max)
    known = "no prefill measured: taken as 0" if alone_s is None else f"{prefill_s:.3f} s of prefill alone, measured"
    how = f"min(ttft_s {promise_s:g} − prefill, queue.wait_s_max {section.wait_s_max:g}); {known}; checked at the head"
    return value, "s", CONFIG if alone_s is None else MEASURED, how, "slower prefill: earlier"


def _timeouts(facts: Facts) -> Sheet:
    sheet = Sheet(f"Timeout hierarchy, class {facts.service_class}")
    section, given = facts.policy.classes[facts.service_class], facts.config.classes[facts.service_class].timeouts
    place = f"classes.{facts.service_class}"
    sheet.known(
        "Client timeout", given.client_s, "s", CONFIG, f"{place}.timeouts.client_s, or the client's own header", "clients"
    )
    sheet.known(
        "Gateway timeout → HTTP 504", section.gateway_s, "s", CONFIG, f"{place}.timeouts.gateway_s", "longest good answer"
    )
    sheet.known("Queue ingress deadline", *ingress_s(facts, section))
    inner_s = section.wait_s_max + section.first_byte_s
    ordered = "yes" if given.client_s > section.gateway_s > inner_s else "no"
    how = f"{given.client_s:g} > {section.gateway_s:g} > {section.wait_s_max:g} + {section.first_byte_s:g} s to the first byte"
    sheet.known("Strictly ordered", ordered, "", CONFIG, how, "`headworks check` refuses a file where it is not")
    return sheet


def _fallback(facts: Facts) -> Sheet:
    sheet, section = Sheet("Fallback cascade"), facts.policy.classes[facts.service_class]
    place = f"classes.{facts.service_class}.on_pressure"
    how = "always: HTTP 429 with Retry-After, retry-after-ms and X-Overload-Reason; each client its own slot"
    sheet.known("1. Fast reject", "on", "", CONFIG, how, "a class that should rather wait: its queue.wait_s_max")
    slowest = None if facts.through is None else facts.through.burst.refusal_p99_s
    if slowest is None:
        why = facts.reason("through") if facts.through is None else "nothing was refused in the burst"
        sheet.unknown("1. Time to a refusal, p99", "s", why)
    else:
        sheet.known(
            "1. Time to a refusal, p99",
            slowest,
            "s",
            MEASURED,
            "in the burst; its wait in the queue included",
            "above wait_s_max: the gateway lags",
        )
    steps = {step.action: step for step in section.on_pressure}
    for kinds, name in FALLBACKS:
        set_up = [kind for kind in kinds if kind in steps]
        told = ", ".join(f"{kind} from {steps[kind].enter_ratio:g} of pressure" for kind in set_up) or "off"
        sheet.known(
            name, told, "", CONFIG, place if set_up else f"{place} has none of {', '.join(kinds)}", "the class's consent"
        )
    cascade = any(kind in steps for kind in FALLBACKS[0][0])
    why = (
        "the other model was not asked: name its pool with --pool and run this again"
        if cascade
        else "no model cascade is set up"
    )
    sheet.unknown("2. Fallback TTFT, measured", "s", why)
    sheet.unknown("2. Quality delta", "", "needs an evaluation set of your own: headworks never judges answers")
    return sheet


FALLBACKS = (
    (("smaller_model", "spill"), "2. Model cascade"),
    (("clamp_output", "no_speculation", "strip_few_shot", "drop_n"), "3. Quality degradation"),
    (("cached",), "4. Cache"),
)


def _retries(facts: Facts) -> Sheet:
    sheet = Sheet("Retry guidance")
    how = "what `headworks.client` does; stock SDKs retry twice"
    sheet.known("Max retries", CLIENT_RETRIES, "", CONFIG, how, "never more: each refused call would be as many requests")
    how = f"factor {CLIENT_FACTOR:g}, ±{CLIENT_JITTER:.0%}, never earlier than the hint"
    sheet.known(
        "Base delay", "Retry-After / retry-after-ms", "", CONFIG, how, "hints are slots: they need no jitter to be spread"
    )
    for name, tenant in list(facts.policy.tenants.items())[:20]:
        _rates(sheet, f"Bucket of each client of {name}", tenant.client_rate, f"tenants.{name}.client_rate")
    how = "headworks_refused_total by tenant, client and reason; headworks_retries_total by what the retry did"
    sheet.known("429 logged by client", "yes", "", CONFIG, how)
    return sheet


def _alerts(facts: Facts) -> Sheet:
    sheet = Sheet("Observability thresholds")
    for name, threshold, span, alert in ALERTS:
        sheet.known(name, f"{threshold} {span}", "", CONFIG, f"{alert} in dashboards/alerts.yaml", "false alarms, or late ones")
    if facts.service_per_s is None:
        sheet.unknown("client_goodput_rps", SECOND_UNIT, f"0.9 × min(arrivals, μ): {facts.reason('measured')}")
    else:
        value = GOODPUT_RATIO * facts.service_per_s * facts.replicas
        how = "0.9 × aggregate μ as measured; HeadworksGoodputLow takes the lesser of that and arrivals, for 60 s"
        sheet.known("client_goodput_rps", value, SECOND_UNIT, MEASURED, how, "another μ")
    return sheet


SECOND_UNIT = "requests/s"


def _cost(facts: Facts) -> Sheet:
    sheet, pool = Sheet("Cost accounting"), facts.config.pools[facts.pool]
    price = pool.gpu_price_per_h
    if price is None:
        sheet.unknown("GPU cost", "money/h/GPU", f"pools.{facts.pool}.gpu_price_per_h states none")
        sheet.unknown("Wasted by naive FIFO in 10 min", "money/GPU", "the GPU cost is not known")
    else:
        sheet.known("GPU cost", price, "money/h/GPU", CONFIG, f"pools.{facts.pool}.gpu_price_per_h", "another contract")
        wasted = NAIVE_WASTED_RATIO * price * NAIVE_S / 3600.0
        how = "price × 10 min × 0.9: the share of work for nobody is assumed, not measured; `headworks sim` draws it"
        sheet.known("Wasted by naive FIFO in 10 min", wasted, "money/GPU", PHYSICS, how, "clients that wait longer")
    if not facts.config.spill:
        sheet.unknown("Fallback cloud spillover", "money/1K tokens", "no spill is configured")
        sheet.unknown("Budget for burst absorption", "money/day", "no spill is configured")
    for name, spill in facts.config.spill.items():
        tokens = spill.price_per_mtoken
        value = f"{tokens.prompt / 1000:g} in, {tokens.output / 1000:g} out"
        sheet.known(f"Spillover to {name}", value, "money/1K tokens", CONFIG, f"spill.{name}.price_per_mtoken", "its price")
        where = f"spill.{name}.money_per_day_max"
        sheet.known(f"Budget of {name}", spill.money_per_day_max, "money/day", CONFIG, where, "bursts that cost more")
    return sheet

"""The first half of the page: the model, what comes, what one replica and all of them carry, and how they are laid out."""

from __future__ import annotations

from headworks.core.policy import ClassPolicy
from headworks.tools.policy_facts import CONFIG, ENGINE, MEASURED, PHYSICS, Facts, Field, Sheet
from headworks.tools.policy_physics import LINKS_BYTES_PER_S, transfer_s

SECOND = "requests/s"


def capacity_fields(facts: Facts) -> list[Field]:
    """Section by section, in the page's order."""
    sheets = (_model(facts), _workload(facts), _promises(facts), _capacity(facts), _topology(facts))
    return [field for sheet in sheets for field in sheet.fields]


def _model(facts: Facts) -> Sheet:
    sheet, shape, found = Sheet("Model"), facts.shape, None if facts.report is None else facts.report.found
    if found is None:
        sheet.unknown("Model", "", facts.reason("report"))
    else:
        sheet.known("Model", ", ".join(found.models), "", ENGINE, "/v1/models", "another model: everything below is another's")
    if shape is None or shape.weight_bytes is None:
        why = facts.reason("shape") if shape is None else "its config.json does not say enough to count parameters"
        sheet.unknown("Weight footprint", "bytes", why)
    else:
        how = f"{shape.parameters:,} parameters × {shape.number_bytes} bytes, by config.json"
        sheet.known("Weight footprint", shape.weight_bytes, "bytes", PHYSICS, how, "quantised weights")
    _fits(sheet, facts)
    per_token = _kv_bytes_per_token(sheet, facts)
    longest = found.context_tokens if found is not None else None
    if longest is None:
        sheet.unknown("Max prompt", "tokens", "the engine does not state its context" if found else facts.reason("report"))
    else:
        sheet.known("Max prompt", longest, "tokens", ENGINE, "its context, answer included", "another --max-model-len")
    if longest is None or per_token is None:
        sheet.unknown("KV of the max prompt", "bytes", "the context or the bytes of a token are not known")
    else:
        how = f"{longest:,} tokens × {per_token:,} bytes"
        sheet.known("KV of the max prompt", longest * per_token, "bytes", PHYSICS, how, "a longer context")
    if found is None or found.kv_tokens is None:
        why = facts.reason("report") if found is None else "the engine does not state it"
        sheet.unknown("KV memory of a replica", "tokens", why)
    else:
        sheet.known("KV memory of a replica", found.kv_tokens, "tokens", ENGINE, "in whole blocks", "other flags of its memory")
    return sheet


def _fits(sheet: Sheet, facts: Facts) -> None:
    weights = facts.shape.weight_bytes if facts.shape is not None else None
    if weights is None or facts.accelerator_bytes is None:
        sheet.unknown(
            "Fits one accelerator", "", "needs --model-config and --accelerator-gib: no engine states what its card has"
        )
        return
    fits = "yes" if weights < facts.accelerator_bytes else "no"
    how = f"{weights:,} bytes of weights against {facts.accelerator_bytes:,}"
    sheet.known("Fits one accelerator", fits, "", PHYSICS, how, "if not: tensor parallelism, which headworks does not see")


def _kv_bytes_per_token(sheet: Sheet, facts: Facts) -> int | None:
    """By the model's shape, else as somebody stated it."""
    name, shape = "KV bytes per token", facts.shape
    change = "another number format of the cache, or another model"
    if shape is not None:
        how = f"2 × {shape.layers} layers × {shape.kv_heads} heads × {shape.head_size} × {shape.number_bytes} bytes"
        sheet.known(name, shape.kv_bytes_per_token, "bytes", PHYSICS, how, change)
        return shape.kv_bytes_per_token
    size, how = facts.flag("kv_cache_memory_bytes")
    kv_tokens, _ = facts.flag("kv_cache_size_tokens")
    if size is not None and size.isdecimal() and kv_tokens is not None and kv_tokens.isdecimal() and int(kv_tokens):
        per_token = int(size) // int(kv_tokens)
        sheet.known(name, per_token, "bytes", ENGINE, f"{int(size):,} bytes ÷ {int(kv_tokens):,} tokens ({how})", change)
        return per_token
    for model in facts.report.found.models if facts.report is not None else ():
        stated = facts.config.models[model].kv_bytes_per_token if model in facts.config.models else None
        if stated is not None:
            sheet.known(name, stated, "bytes", CONFIG, f"models.{model}.kv_bytes_per_token", change)
            return stated
    sheet.unknown(name, "bytes", "needs --model-config FILE, a model's config.json", change)
    return None


def _workload(facts: Facts) -> Sheet:
    sheet, traffic = Sheet("Workload"), facts.traffic
    change = "the mix of lengths, or more of them than a burst that was planned for"
    for name, key in (("λ base", "base_per_s"), ("λ burst", "burst_per_s")):
        if traffic is None:
            sheet.unknown(name, SECOND, facts.reason("traffic"), change)
            continue
        minute = "the minute in the middle" if key == "base_per_s" else "the fullest minute"
        how = f"{minute} of {traffic.arrivals:,} requests in {traffic.log_s / 3600:.1f} h of the decision log"
        sheet.known(name, getattr(traffic, key), SECOND, MEASURED, how, change)
    if facts.measured is None:
        sheet.unknown("Measured mix", "", facts.reason("measured"))
    else:
        sizes = ", ".join(f"{name} {prompt} + {output}" for name, prompt, output in facts.measured.sizes)
        mix = "/".join(str(share) for share in facts.measured.mix)
        how = f"what was sent for this page: {sizes} tokens in and out"
        sheet.known("Measured mix", mix, "%", MEASURED, how, "your own mix: every rate below is by this one")
    return sheet


def _promises(facts: Facts) -> Sheet:
    sheet, section = (
        Sheet(f"SLOs of class {facts.service_class}, as clients see them"),
        facts.policy.classes[facts.service_class],
    )
    place = f"classes.{facts.service_class}.slo"
    for name, value, percentile in slos_of(section, facts):
        if value is None:
            sheet.unknown(name, "s", f"{place} does not promise it")
        else:
            sheet.known(f"p{percentile:g} {name}", value, "s", CONFIG, place, "what clients can stand, or another price of it")
    stated = facts.config.classes[facts.service_class].slo.goodput_ratio
    if stated is None:
        sheet.unknown("Goodput", "ratio", f"{place}.goodput_ratio does not state one")
    else:
        sheet.known(
            "Goodput", stated, "ratio", CONFIG, f"{place}.goodput_ratio", "each promise is decided by its own percentile"
        )
    return sheet


def slos_of(section: ClassPolicy, facts: Facts) -> tuple[tuple[str, float | None, float], ...]:
    """Name, promise and percentile of each."""
    slo = facts.config.classes[facts.service_class].slo
    return (
        ("TTFT", section.ttft_slo_s, slo.ttft_percentile),
        ("TPOT", section.tpot_slo_s, slo.tpot_percentile),
        ("E2E", section.e2e_slo_s, slo.e2e_percentile),
    )


def _capacity(facts: Facts) -> Sheet:
    sheet, measured = Sheet("Capacity baseline"), facts.measured
    where = f"pools.{facts.pool}.replicas"
    sheet.known(
        "Replicas", facts.replicas, "", CONFIG, where, "demand above 0.8 of them for hours (headworks_scale_wanted_ratio)"
    )
    if measured is None or facts.service_per_s is None:
        for name, unit in (("Single-replica μ", SECOND), ("Aggregate μ", SECOND), ("Saturation under SLO", SECOND)):
            sheet.unknown(name, unit, facts.reason("measured"))
        for name in ("Prefill rate", "Decode rate, alone", "Binding SLO"):
            sheet.unknown(name, "", facts.reason("measured"))
        return sheet
    full, wide = measured.full, " (wider than ±10 %: give it more minutes)" if measured.is_wide else ""
    how = f"kept full by {full.clients} clients, ±{full.error_ratio:.0%}{wide}"
    sheet.known("Single-replica μ", full.requests_per_s, SECOND, MEASURED, how, "below λ base ÷ replicas: more replicas")
    together = f"{facts.replicas} × what was measured on the first"
    sheet.known("Aggregate μ", facts.replicas * full.requests_per_s, SECOND, MEASURED, together, "replicas that are not alike")
    last = measured.rates[-1]
    tried = f"{last.requests_per_s:.2f}/s: {last.on_time_ratio:.0%} of {last.offered} in time"
    kept = f"highest rate that was tried at which 99 % had a first token within {measured.ttft_slo_s:g} s"
    if measured.saturation_per_s is None:
        sheet.unknown("Saturation under SLO", SECOND, f"not even at the lowest rate that was tried ({tried})")
    else:
        sheet.known("Saturation under SLO", measured.saturation_per_s, SECOND, MEASURED, kept, "limits are 0.8 of it")
    if facts.traffic is not None:
        room = facts.replicas * full.requests_per_s / max(facts.traffic.burst_per_s, 1e-9)
        sheet.known("Aggregate μ ÷ λ burst", room, "×", MEASURED, "both as above", "below 1: what is over is refused or queued")
    if measured.prefill_tokens_per_s is None:
        sheet.unknown("Prefill rate", "tokens/s", "longer prompts took no longer: too fast for this machine to tell")
    else:
        how = "slope of first tokens against prompt lengths, alone"
        sheet.known("Prefill rate", measured.prefill_tokens_per_s, "tokens/s", MEASURED, how, "prefix hits make it look faster")
    sheet.known("Decode, a token, alone", measured.tpot_alone_s, "s", MEASURED, "the middle one, alone", "a larger batch")
    sheet.known(
        "Decode, a token, full", full.tpot_p50_s, "s", MEASURED, "the middle one, kept full", "above the TPOT SLO: fewer"
    )
    sheet.known("Binding SLO", binding(facts), "", MEASURED, "which promise broke first as clients were added", "its promise")
    return sheet


def binding(facts: Facts) -> str:
    """Which promise of the class is broken first when more clients ask."""
    section = facts.policy.classes[facts.service_class]
    assert facts.measured is not None
    for step in facts.measured.ramp:
        late = section.ttft_slo_s is not None and step.ttft_p95_s is not None and step.ttft_p95_s > section.ttft_slo_s
        slow = section.tpot_slo_s is not None and step.tpot_p50_s is not None and step.tpot_p50_s > section.tpot_slo_s
        if late or slow:
            return (
                f"{'TTFT' if late else ''}{' and ' if late and slow else ''}{'TPOT' if slow else ''} at {step.clients} clients"
            )
    return f"neither, up to {facts.measured.ramp[-1].clients} clients"


def _topology(facts: Facts) -> Sheet:
    sheet = Sheet("Topology")
    how = "what headworks is told; how an engine splits its model over cards is its own affair"
    sheet.known("Selected", f"replicas (R={facts.replicas})", "", CONFIG, how, "a model that does not fit one card")
    why = "headworks moves no KV cache between engines; measure the link with the tool of its maker"
    sheet.unknown("Interconnect, measured", "GB/s", why, "prefill and decode on different machines")
    size = next((one.value for one in _model(facts).fields if one.name == "KV of the max prompt"), None)
    for name, bytes_per_s in LINKS_BYTES_PER_S:
        if isinstance(size, int):
            how = f"{size:,} bytes ÷ {bytes_per_s / 1e9:g} GB/s: no link of that rate is faster"
            sheet.known(f"KV transfer floor, {name}", transfer_s(size, bytes_per_s), "s", PHYSICS, how, "a longer prompt")
        else:
            sheet.unknown(f"KV transfer floor, {name}", "s", "the KV bytes of the max prompt are not known")
    return sheet

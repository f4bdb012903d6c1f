"""The text of a first `headworks.yaml`, from what an engine says of itself.

Every value has a comment that says where it comes from: `engine` (it said so), `default` (ours, for most), `measure` (nobody
has said it: a careful start, to be replaced by a figure of one's own). Limits are `LIMIT_RATIO` of what the engine can hold:
the rest is for what nobody reserves, such as blocks that are half full and an estimate that was too small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from headworks.tools.engine_probe import Found
from headworks.tools.measure import Measured

LIMIT_RATIO = 0.8
TENANT_RATIO = 0.5
"""The example tenant's part of the pool: one tenant alone cannot take it whole."""
TENANT, KEY_VARIABLE = "acme", "ACME_KEY"
COMMENT_COLUMN = 44
SLOTTED = "llamacpp"
"""The kind whose memory is divided into slots beforehand: four fifths of them would leave one empty, and save nothing."""
ENGINE, DEFAULT, MEASURE, MEASURED = "[engine]", "[default]", "[measure]", "[measured]"


def first_file(found: Found, url: str, api_key: str | None, written_on: str, measured: Measured | None = None) -> str:
    """The whole file. `api_key`: how the engine's own key is named, as `env:NAME`. `measured`: by `headworks calibrate`."""
    head = _head(found, url, written_on) if measured is None else _measured_head(found, url, written_on, measured)
    return "\n".join([*head, *_gateway(), *_pool(found, url, api_key, measured), *_who(found, measured), ""])


def pool_name(found: Found) -> str:
    """A name for the pool, from its first model."""
    name = re.sub(r"[^a-z0-9_.-]+", "-", found.models[0].rpartition("/")[2].lower()).strip("-._")
    return name[:63] or "engine"


def tokens_max(found: Found) -> int | None:
    """What may be reserved at once: whole blocks, and at least one. A slot is reserved whole whatever is in it."""
    if found.kv_tokens is None or found.kind == SLOTTED:
        return found.kv_tokens
    blocks = int(found.kv_tokens * LIMIT_RATIO) // found.block_tokens
    return max(1, blocks) * found.block_tokens


def requests_max(found: Found) -> int | None:
    """Sequences that may run at once."""
    if found.kind == SLOTTED:
        return found.running_max
    return max(1, int(found.running_max * LIMIT_RATIO)) if found.running_max is not None else None


def tenant_tokens_max(found: Found) -> int | None:
    """The example tenant's limit: its part of the pool, but never less than one request of full length."""
    whole = tokens_max(found)
    if whole is None:
        return None
    return max(int(whole * TENANT_RATIO), min(whole, found.context_tokens or 0))


def _head(found: Found, url: str, written_on: str) -> Iterator[str]:
    yield f"# headworks before {found.product} at {url}"
    yield f"# written on {written_on} by `headworks init` from what the engine said. Where a value comes from:"
    yield f"#   {ENGINE} the engine said so   {DEFAULT} ours   {MEASURE} nobody has said it: measure it, then state it"
    yield f"# Limits are {LIMIT_RATIO:g} of what the engine can hold. `headworks check` says what will be enforced."
    for note in found.notes:
        yield f"# note: {note}"


def _measured_head(found: Found, url: str, written_on: str, measured: Measured) -> Iterator[str]:
    """Everything that was measured, for whoever reads the file next year."""
    full, mix = measured.full, "/".join(str(share) for share in measured.mix)
    sizes = ", ".join(f"{name} {prompt:,} + {output:,}" for name, prompt, output in measured.sizes)
    wide = ": WIDER than 10 %, give it more minutes" if measured.is_wide else ""
    yield f"# headworks before {found.product} at {url}"
    yield f"# written on {written_on} by `headworks calibrate`. Where a value comes from:"
    yield f"#   {MEASURED} by a mix of {mix} % ({sizes} tokens)   {ENGINE} the engine said so   {DEFAULT} ours"
    yield f"# Limits are {LIMIT_RATIO:g} of what was measured. `headworks check` says what will be enforced."
    rate = f"{full.requests_per_s:.2f} requests/s (±{full.error_ratio:.0%}{wide})"
    yield f"# service rate {rate}, kept full by {full.clients} clients"
    yield f"#   reading {full.prompt_tokens_per_s:,.0f} and writing {full.output_tokens_per_s:,.0f} tokens/s"
    yield f"# alone: {_alone(measured)}"
    yield f"# saturation: {_saturation(measured)}"
    for note in found.notes:
        yield f"# note: {note}"


def _alone(measured: Measured) -> str:
    rate_per_s = measured.prefill_tokens_per_s
    reading = "prompts cost nothing" if rate_per_s is None else f"{rate_per_s:,.0f} tokens/s read"
    writing = "" if measured.tpot_alone_s is None else f", {measured.tpot_alone_s * 1000:.1f} ms a token written"
    return f"{reading} after {measured.ttft_base_s * 1000:.0f} ms{writing}"


def _saturation(measured: Measured) -> str:
    kept_per_s, last_per_s = measured.saturation_per_s, measured.rates[-1].requests_per_s
    promise = f"first token within {measured.ttft_slo_s:g} s for 99 %"
    if kept_per_s is None:
        return f"below {last_per_s:.2f} requests/s ({promise})"
    above = f"and not at {last_per_s:.2f}" if last_per_s > kept_per_s else "and perhaps more"
    return f"{kept_per_s:.2f} requests/s {above} ({promise})"


def _gateway() -> Iterator[str]:
    yield from ("", "server:")
    yield _row("  listen: 127.0.0.1:8080", DEFAULT, "where clients connect; other machines need TLS and keys")
    yield _row("  admin: 127.0.0.1:8081", DEFAULT, "/livez /readyz /metrics /admin/*")
    yield _row("  mode: enforce", DEFAULT, "observe decides and records, and refuses nothing: a good first day")
    yield from ("", "log:")
    yield _row("  decisions: decisions/", DEFAULT, "what `headworks explain ID` reads; never a prompt")


def _pool(found: Found, url: str, api_key: str | None, measured: Measured | None) -> Iterator[str]:
    yield from ("", "pools:", f"  {_text(pool_name(found))}:")
    yield _row(f"    models: [{', '.join(_text(model) for model in found.models)}]", ENGINE, _context(found))
    key = f", api_key: {_text(api_key)}" if api_key else ""
    proof = f"proves a stop by {', '.join(found.evidence)}"
    yield "    replicas:"
    yield _row(f"      - {{url: {_text(url)}, engine: {found.kind}{key}}}", ENGINE, f"{found.product}: {proof}")
    yield _tokens_row(found)
    yield _requests_row(found) if measured is None else _measured_requests_row(measured)
    yield _evidence_row(found)
    if found.kind == SLOTTED:
        why = f"{found.running_max}.0 if each slot has as many tokens of its own (--parallel, and no --kv-unified)"
        yield _row("    over_commit: 1.0", MEASURE, why)
    if found.kind in ("vllm", "sglang"):
        yield _row("    kv_ratio_max: 0.85", DEFAULT, "above it by the engine's own gauge, new work waits")


def _context(found: Found) -> str:
    if found.context_tokens is None:
        return "its context is not stated: requests without max_tokens are taken for 4,096 tokens"
    return f"one request can be {found.context_tokens:,} tokens long, answer included"


def _tokens_row(found: Found) -> str:
    limit = tokens_max(found)
    if found.kind == SLOTTED:
        why = f"{limit:,} tokens × over_commit: one slot's, as it does not say whether its slots share them"
        return _row("    active_tokens_max: auto", ENGINE, why)
    if limit is None:
        return _row("    active_tokens_max: auto", MEASURE, "the engine does not say what it holds: tokens are not limited")
    source = f"{LIMIT_RATIO:g} of {found.kv_tokens:,} tokens of memory, in whole blocks"
    if found.context_tokens is not None and limit < found.context_tokens:
        source += f"; requests over {limit:,} tokens are refused, though the context is {found.context_tokens:,}"
    return _row(f"    active_tokens_max: {limit}", ENGINE, source)


def _requests_row(found: Found) -> str:
    limit = requests_max(found)
    if found.kind == SLOTTED:
        return _row("    active_requests_max: auto", ENGINE, f"its {limit} slots: what came beyond would wait inside it")
    if limit is None:
        why = "the engine does not say how many it runs at once: the limit follows the first token; or a number"
        return _row("    active_requests_max: auto", MEASURE, why)
    return _row(f"    active_requests_max: {limit}", ENGINE, f"{LIMIT_RATIO:g} of its {found.running_max} places")


def _measured_requests_row(measured: Measured) -> str:
    limit, full = measured_requests_max(measured), measured.full
    why = f"{LIMIT_RATIO:g} of the {full.clients} that kept it full; more of them brought next to nothing more"
    return _row(f"    active_requests_max: {limit}", MEASURED, why)


def measured_requests_max(measured: Measured) -> int:
    """Sequences that may run at once, by what kept the engine full."""
    return max(1, int(measured.full.clients * LIMIT_RATIO))


def measured_tokens_per_s(measured: Measured) -> int:
    """What one tenant may use over time, by what the engine read and wrote when it was kept full."""
    return max(1, int((measured.full.prompt_tokens_per_s + measured.full.output_tokens_per_s) * LIMIT_RATIO))


def _evidence_row(found: Found) -> str:
    if "E3a" in found.evidence or "E3b" in found.evidence:
        return _row("    evidence_min: E3", DEFAULT, "what a client left is free when the engine is seen to have stopped")
    return _row("    evidence_min: E1", ENGINE, "it shows no stop: the answer of a client that left is read to its end")


def _who(found: Found, measured: Measured | None) -> Iterator[str]:
    yield from ("", "classes:", "  interactive:")
    if measured is None:
        yield _row("    slo: {ttft_s: 1.0}", DEFAULT, "promised first token; measure: how long does it take alone?")
    else:
        why = "promised first token, as `--ttft-slo` had it: what was measured was measured by it"
        yield _row(f"    slo: {{ttft_s: {measured.ttft_slo_s:g}}}", DEFAULT, why)
    yield _row("    queue: {wait_s_max: 0.5}", DEFAULT, "the longest a request waits here before it is refused")
    yield from ("", "tenants:", f"  {TENANT}:")
    yield _row(f'    keys: ["env:{KEY_VARIABLE}"]', DEFAULT, "an example: the variable holds the tenant's API key")
    yield _row("    class: interactive", DEFAULT, "or batch, or bulk: what its requests are unless they say otherwise")
    limit = tenant_tokens_max(found)
    if limit is not None:
        yield _row(
            f"    active_tokens_max: {limit}", DEFAULT, f"{limit / (tokens_max(found) or limit):.0%} of the pool at once"
        )
    if measured is not None:
        why = f"{LIMIT_RATIO:g} of what the engine read and wrote a second, kept full"
        yield _row(f"    rate: {{tokens_per_s: {measured_tokens_per_s(measured)}}}", MEASURED, why)


def _row(text: str, source: str, why: str) -> str:
    return f"{text + '  ':<{COMMENT_COLUMN}}# {source} {why}"


def _text(value: str) -> str:
    """A YAML string that is nothing but a string, whatever it holds: JSON's are."""
    return json.dumps(value)

"""`headworks validate`: every blank of the policy has its value and where that comes from, or why it has none (F5)."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from headworks.cli.main import run as headworks
from headworks.client.policy import RetryPolicy
from headworks.config import build
from headworks.config.load import load_bytes
from headworks.sim.presets import vllm_cpu_tiny
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine
from headworks.tools.decision_log import LogError
from headworks.tools.doctor_report import HOLDS, Finding, Flag, Report
from headworks.tools.doctor_stops import Left, Rounds
from headworks.tools.engine_probe import Found
from headworks.tools.measure import Measured, RateStep, Step
from headworks.tools.policy_facts import FAIL, NOT_MEASURABLE, PASS, Facts, Field
from headworks.tools.policy_physics import Shape, ShapeError, shape_of
from headworks.tools.policy_probe import Served, Storm, Through
from headworks.tools.policy_rules import ALERTS, CLIENT_FACTOR, CLIENT_JITTER, CLIENT_RETRIES
from headworks.tools.policy_text import html, markdown, page_of, value_text
from headworks.tools.policy_traffic import traffic_of

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parent.parent.parent
LLAMA_2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
FILE = """
log: {decisions: null}
tenants:
  acme: {keys: ["env:ACME_KEY"], rate: {tokens_per_s: 2000, burst_tokens: 8000}}
pools:
  llama:
    gpu_price_per_h: 5.12
    replicas: [{url: "http://127.0.0.1:8000", engine: vllm}, {url: "http://127.0.0.1:8001", engine: vllm}]
"""
BLANKS = (
    *("Model", "Weight footprint", "Fits one accelerator", "KV bytes per token", "Max prompt", "KV of the max prompt"),
    *("λ base", "λ burst", "Single-replica μ", "Replicas", "Aggregate μ", "Binding SLO", "Goodput"),
    *("Selected", "Interconnect, measured", "KV transfer floor, 10 Gbps (1.25 GB/s)", "Pinned engine version"),
    *("--max-num-seqs", "--max-num-active-seqs", "--max-num-batched-tokens", "--enable-chunked-prefill"),
    *("--max-num-queued-reqs", "--max-num-queued-tokens", "1. Token bucket of acme, rate", "1. Token bucket of acme, burst"),
    *("2. Predictive TTFT, class interactive", "3. KV headroom", "4. Queue ingress deadline, class interactive"),
    *("Client timeout", "Gateway timeout → HTTP 504", "Queue ingress deadline", "1. Fast reject", "2. Model cascade"),
    *("2. Fallback TTFT, measured", "2. Quality delta", "3. Quality degradation", "4. Cache", "Max retries", "Base delay"),
    *("num_requests_waiting", "kv_cache_usage", "num_preemptions_total rate", "429 rate", "client_goodput_rps"),
    *("GPU cost", "Wasted by naive FIFO in 10 min", "Fallback cloud spillover", "Budget for burst absorption"),
)
"""Of the policy's template, those that are to be filled in."""


def shape(tmp_path: Path, **fields: Any) -> Shape:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA_2_7B, **fields}))
    return shape_of(file)


def bare(text: str = FILE) -> Facts:
    config = load_bytes(text.encode(), "h.yaml", {"ACME_KEY": "a-key-of-the-example-tenant"}).config_or_raise()
    policy = build.policy(config, number=1)
    why = dict.fromkeys(("report", "measured", "through", "traffic", "shape"), "nothing was sent")
    return Facts(config, policy, "llama", "interactive", "h.yaml", "http://127.0.0.1:8000", why=why)


def served(**fields: Any) -> Served:
    return replace(Served(8.0, 100, 100, 100, {}, 0.2, 0.02, 2.0, None), **fields)


def full(**fields: Any) -> Facts:
    """Everything was had."""
    found = Found("vllm", "vLLM 0.32.0", ("m",), 512, 16_000, 16, None, ("E1", "E3a", "E3b", "E4"), ())
    half = Finding("abort on half-close", HOLDS, "20 of 20 stopped", figures={"kv_kept_max_ratio": 0.0, "steps_max": 2})
    findings = [half, *(Finding(f"abort {how}", HOLDS, "3 of 3 stopped") for how in ("on disconnect", "without a stream"))]
    flags = [Flag("version", "0.32.0", "its own word"), Flag("--max-num-seqs", "64", "64 streams at once")]
    step = Step(16, 200, 10.0, 0.05, 900.0, 100.0, 0.4, 0.02, 0)
    slow = replace(step, clients=32, tpot_p50_s=0.05)
    sizes = (("small", 64, 64), ("medium", 512, 128), ("large", 2048, 256))
    measured = Measured(
        *("m", 512, sizes, (70, 20, 10), 1.0, 0.015, 5_000.0, 0.01), [step, slow], step, [RateStep(9.0, 100, 1.0)], 9.0
    )
    stops = Rounds([Left("close", 3.0, gone_s=0.03)] * 5)
    burst = served(requests_per_s=60.0, offered=600, refused={"queue_delay_exceeded": 400}, ttft_p95_s=0.9, refusal_p99_s=0.01)
    through = Through(served(), burst, Storm(100, 80, 120, 12, 90, 11, 9.0), stops)
    report = Report("http://127.0.0.1:8000", found, findings, flags, found.evidence, "E3")
    return replace(bare(), **{"report": report, "measured": measured, "through": through, **fields})


def fields_of(facts: Facts) -> dict[str, Field]:
    return {field.name: field for field in page_of(facts, "2026-11-30").fields}


def boxes_of(facts: Facts) -> dict[str, str]:
    return {box.line: box.outcome for box in page_of(facts, "2026-11-30").boxes}


def test_F5_the_golden_sizes_follow_from_the_shape(tmp_path: Path) -> None:
    found = shape(tmp_path)
    assert found.kv_bytes_per_token == 524_288
    assert found.weight_bytes == pytest.approx(13.5e9, rel=0.01)
    fields = fields_of(full(shape=found, accelerator_bytes=80 * 2**30))
    assert fields["KV bytes per token"].value == 524_288 and fields["KV bytes per token"].source == "physics"
    assert fields["KV of the max prompt"].value == 268_435_456
    assert value_text(fields["KV of the max prompt"]) == "268,435,456 bytes (256 MiB)"
    assert fields["KV transfer floor, 10 Gbps (1.25 GB/s)"].value == pytest.approx(0.2147, abs=1e-4)
    assert fields["KV transfer floor, 100 Gbps RDMA (12.5 GB/s)"].value == pytest.approx(0.0215, abs=1e-4)
    nvlink_s = fields["KV transfer floor, NVLink 3 (300 GB/s)"].value
    assert isinstance(nvlink_s, float) and nvlink_s < 0.001
    assert fields["Fits one accelerator"].value == "yes"


def test_F5_grouped_heads_take_less(tmp_path: Path) -> None:
    assert shape(tmp_path, num_key_value_heads=8).kv_bytes_per_token == 131_072
    assert shape(tmp_path, torch_dtype="float8_e4m3fn").kv_bytes_per_token == 262_144
    with pytest.raises(ShapeError, match="torch_dtype is int3"):
        shape(tmp_path, torch_dtype="int3")
    with pytest.raises(ShapeError, match="num_hidden_layers is missing"):
        shape(tmp_path, num_hidden_layers=None)


@pytest.mark.parametrize("facts", [bare(), full()], ids=["nothing was measured", "everything was"])
def test_F5_every_blank_of_the_template_is_there_with_its_source(facts: Facts) -> None:
    fields = fields_of(facts)
    assert set(BLANKS) - fields.keys() == set()
    for field in fields.values():
        assert field.source in ("measured", "config", "engine", "physics", "unknown"), field
        assert (field.value is None) == (field.source == "unknown"), field
        assert field.how, f"{field.name} does not say how it was got, or why not"


def test_F5_what_was_not_measured_never_poses_as_measured() -> None:
    page = page_of(bare(), "2026-11-30")
    assert [field.name for field in page.fields if field.source in ("measured", "engine")] == []
    assert {box.outcome for box in page.boxes} == {NOT_MEASURABLE}
    assert fields_of(bare())["Single-replica μ"].how == "nothing was sent"
    assert page.holds, "nothing was seen to fail"


def test_F5_what_was_measured_is_what_was_measured() -> None:
    fields = fields_of(full())
    assert (fields["Single-replica μ"].value, fields["Aggregate μ"].value) == (10.0, 20.0)
    assert fields["Saturation under SLO"].value == 9.0
    assert fields["Binding SLO"].value == "TPOT at 32 clients"
    assert fields["client_goodput_rps"].value == 18.0
    assert fields["--max-num-seqs"].value == "64" and fields["--max-num-seqs"].source == "measured"
    assert fields["--max-num-active-seqs"].value is None
    assert fields["Queue ingress deadline"].value == 0.5, "the class waits no longer than that"
    assert fields["Wasted by naive FIFO in 10 min"].value == pytest.approx(0.768)
    assert (fields["1. Token bucket of acme, rate"].value, fields["1. Token bucket of acme, burst"].value) == (2000, 8000)
    assert fields["Most tokens at once"].value == 32_000, "two replicas of 16,000"


def test_F5_a_figure_that_measuring_did_not_give_is_unknown() -> None:
    facts = full()
    assert facts.measured is not None
    facts.measured = replace(facts.measured, full=replace(facts.measured.full, tpot_p50_s=None), prefill_tokens_per_s=None)
    fields = fields_of(facts)
    for name in ("Decode, a token, full", "Prefill rate"):
        assert (fields[name].value, fields[name].source) == (None, "unknown")
    assert fields["Decode, a token, full"].how == "none was seen (the middle one, kept full)"


def test_F5_the_deadline_at_ingress_is_the_promise_less_the_prefill() -> None:
    facts = full()
    facts.policy.classes["interactive"] = replace(facts.policy.classes["interactive"], wait_s_max=5.0)
    assert fields_of(facts)["Queue ingress deadline"].value == pytest.approx(0.985)


def test_F5_boxes_pass_by_what_was_seen() -> None:
    found = boxes_of(full())
    assert len(found) == 11
    assert [outcome for outcome in found.values() if outcome != PASS] == [NOT_MEASURABLE] * 2
    assert found["Fallback cascade tested: 429 → model cascade → quality degradation → cache"] == NOT_MEASURABLE


@pytest.mark.parametrize(
    ("part", "value", "line"),
    [
        ("base", served(ttft_p95_s=1.2), "Replica baseline measured"),
        ("base", served(good=99), "Replica baseline measured"),
        ("burst", served(refused={}), "Admission control rejects at W_est > the TTFT SLO in a load test"),
        (
            "burst",
            served(refused={"InternalServerError": 9}),
            "Admission control rejects at W_est > the TTFT SLO in a load test",
        ),
        ("stops", Rounds([Left("close", 3.0)]), "Client disconnect → engine.abort() → KV blocks freed"),
        (
            "storm",
            Storm(100, 80, 120, 60, 90, 11, 9.0, 0.05),
            "Retry storm simulated: 100 clients × 3 retries → no synchronized spike",
        ),
    ],
)
def test_F5_boxes_fail_by_what_was_seen(part: str, value: Any, line: str) -> None:
    facts = full()
    assert facts.through is not None
    facts.through = replace(facts.through, **{part: value})
    assert boxes_of(facts)[line] == FAIL
    assert not page_of(facts, "2026-11-30").holds


@pytest.mark.parametrize(("peak", "error_ratio", "outcome"), [
    (13, 0.5, PASS), (14, 0.5, NOT_MEASURABLE), (14, None, NOT_MEASURABLE), (14, 0.2, FAIL), (13, 0.2, PASS),
])  # fmt: skip
def test_F5_a_storm_is_judged_where_the_gateway_knew_how_fast_it_drains(
    peak: int, error_ratio: float | None, outcome: str
) -> None:
    """Slots are as dense as the rate they are spread by: known to ±50 %, half as many again are no spike of its making."""
    facts = full()
    assert facts.through is not None
    facts.through = replace(facts.through, storm=Storm(100, 80, 120, peak, 90, 11, 9.0, error_ratio))
    assert boxes_of(facts)["Retry storm simulated: 100 clients × 3 retries → no synchronized spike"] == outcome


def test_F5_too_few_of_anything_prove_nothing() -> None:
    facts = full()
    assert facts.through is not None
    for few in (Storm(100, 3, 3, 3, 100, 50, 2.0, 0.05), Storm(100, 80, 0, 0, 25, 24, 20.0, 0.05)):
        found = boxes_of(replace(facts, through=replace(facts.through, storm=few)))
        assert found["Retry storm simulated: 100 clients × 3 retries → no synchronized spike"] == NOT_MEASURABLE
    facts.through = replace(facts.through, base=served(offered=5, complete=5, good=5))
    found = boxes_of(facts)
    assert found["Replica baseline measured"] == NOT_MEASURABLE


def test_F5_both_texts_say_all_of_it_and_nothing_in_it_breaks_them() -> None:
    page = page_of(full(file="<b>|h.yaml"), "2026-11-30")
    page.fields[0] = replace(page.fields[0], value="<i>a|b</i>\n# c")
    text, web = markdown(page), html(page)
    for field in page.fields[1:]:
        assert field.name.replace("|", "\\|") in text
    for box in page.boxes:
        assert box.line in text
    assert "<i>" not in web and "&lt;i&gt;a|b" in web
    assert "| <i>a\\|b</i> # c |" in text and "\n# c" not in text
    assert "<script" not in web and "http-equiv" not in web
    assert "Approval sign-off" in text and "Approval sign-off" in web


def test_F5_its_thresholds_are_those_of_the_alerts_and_of_the_client() -> None:
    groups = yaml.safe_load((ROOT / "dashboards" / "alerts.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    for _, threshold, span, alert in ALERTS:
        assert float(rules[alert]["expr"].rpartition(">")[2]) == float(threshold.removeprefix("> ")), alert
        held = re.fullmatch(r"for (\d+) s", span)
        assert held is None or rules[alert]["for"] in (f"{held[1]}s", "1m" if held[1] == "60" else "")
    given = RetryPolicy()
    assert (given.retries_max, given.growth_ratio, given.jitter_ratio) == (CLIENT_RETRIES, CLIENT_FACTOR, CLIENT_JITTER)


def test_F5_traffic_needs_a_log_with_minutes_in_it(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"has no decisions-\*.jsonl"):
        traffic_of(tmp_path)


# the verb


def configured(tmp_path: Path, url: str) -> Path:
    file = tmp_path / "headworks.yaml"
    file.write_text(FILE.split("pools:")[0] + f'pools: {{llama: {{replicas: [{{url: "{url}", engine: vllm}}]}}}}\n')
    return file


def validated(tmp_path: Path, capsys: Capture, *words: str, **settings: Any) -> tuple[int, dict[str, Any]]:
    async def steps() -> int:
        engine = replace(vllm_cpu_tiny(), running_max=6, abort_lag_steps=2)
        async with FakeEngine(FakeSettings(engine=engine, context_tokens=2048, **settings)) as url:
            given = ["validate", "--config", str(configured(tmp_path, url)), "--json", *words]
            return await asyncio.to_thread(headworks, given)

    return asyncio.run(steps()), json.loads(capsys.readouterr().out)


def test_F5_measured_through_the_policy(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "a-key-of-the-example-tenant")
    out = tmp_path / "policy.html"
    words = ("--minutes", "0.1", "--burst", "2", "--out", str(out))
    _, told = validated(tmp_path, capsys, *words, speed=4.0)
    fields = {field["name"]: field for field in told["fields"]}
    for name in ("Single-replica μ", "Prefill rate", "Decode, a token, alone", "--max-num-seqs", "Binding SLO"):
        assert fields[name]["source"] == "measured", fields[name]
    assert fields["--max-num-seqs"]["value"] == "6"
    assert fields["KV memory of a replica"]["source"] == "engine"
    boxes = {box["line"]: box for box in told["boxes"]}
    assert [box["outcome"] for box in told["boxes"] if box["section"] == "Cancellation propagation"] == [PASS] * 4
    stops = boxes["Client disconnect → engine.abort() → KV blocks freed"]
    assert stops["outcome"] == PASS and "5 of 5 stopped" in stops["evidence"], stops["evidence"]
    assert out.read_text().startswith("<!doctype html>")


def test_F5_without_measuring_nothing_is_sent(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "a-key-of-the-example-tenant")
    assert headworks(["validate", "--config", str(configured(tmp_path, "http://127.0.0.1:9")), "--no-measure", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {box["outcome"] for box in told["boxes"]} == {NOT_MEASURABLE}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--pool", "other"), "--pool other: "),
        (("--class", "gold"), "--class gold: "),
        (("--out", "page.txt"), "a name that ends with .md or .html"),
        (("--model-config", "nowhere.json"), "nowhere.json cannot be read"),
    ],
)
def test_F5_what_cannot_be_done_is_said(
    words: tuple[str, ...], expected: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "a-key-of-the-example-tenant")
    assert headworks(["validate", "--config", str(configured(tmp_path, "http://127.0.0.1:9")), *words]) == 2
    assert expected in capsys.readouterr().err

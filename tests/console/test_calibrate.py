"""`headworks calibrate URL`: what it measures of an engine is what that engine is, and limits are 0.8 of it (C4)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from headworks.cli.calibrate import shares_of
from headworks.cli.main import run as headworks
from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import Finished
from headworks.sim.presets import BatchingSettings, StepCost
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine
from headworks.tools.engine_probe import Found
from headworks.tools.first_file import first_file, measured_requests_max
from headworks.tools.measure import Measured, RateStep, Step, enough

Capture = pytest.CaptureFixture[str]
SPEED = 2.0
COST = StepCost(base_s=0.010, prefill_token_s=200e-6, attention_s=0.0, sequence_s=0.5e-3, kv_token_s=0.0)
ENGINE = BatchingSettings(cost=COST, running_max=8, batch_tokens_max=1024, kv_blocks=1_001, report_tokens=8)
MIX = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "a-key-of-the-example-tenant")


def true_service_rate_per_s(sizes: list[list[Any]], clients: int, seconds: float = 200.0) -> float:
    """The same engine in virtual time, kept full by so many that each ask again at once."""
    model, order, names = ContinuousBatching(ENGINE), cycle(MIX), iter(range(10**9))

    def ask(now_s: float) -> None:
        _, prompt_tokens, output_tokens = sizes[next(order)]
        model.submit(f"r{next(names)}", prompt_tokens, output_tokens, 1, [], now_s)

    for _ in range(clients):
        ask(0.0)
    completed, now_s = 0, 0.0
    while now_s < seconds:
        due_s = model.next_s()
        assert due_s is not None
        now_s = due_s
        for output in model.advance(now_s):
            if isinstance(output, Finished):
                completed += 1
                ask(now_s)
    return completed / seconds * SPEED


def test_C4_what_is_measured_is_the_engine_and_limits_are_four_fifths_of_it(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "headworks.yaml"

    async def steps() -> int:
        async with FakeEngine(FakeSettings(engine=ENGINE, context_tokens=1024, speed=SPEED)) as url:
            words = ["calibrate", url, "--minutes", "0.2", "--ttft-slo", "0.4", "--out", str(out), "--json"]
            return await asyncio.to_thread(headworks, words)

    status = asyncio.run(steps())
    told = json.loads(capsys.readouterr().out)
    measured, full = told["measured"], told["measured"]["full"]
    assert status == (1 if told["wide"] else 0)
    true_per_s = true_service_rate_per_s(measured["sizes"], full["clients"])
    assert abs(full["requests_per_s"] - true_per_s) <= max(full["error_ratio"], 0.1) * true_per_s
    assert measured["prefill_tokens_per_s"] == pytest.approx(SPEED / COST.prefill_token_s, rel=0.15)
    assert measured["tpot_alone_s"] == pytest.approx((COST.base_s + COST.sequence_s) / SPEED, rel=0.15)
    assert full["clients"] in (8, 16), "it runs eight at once: more bring nothing more"
    assert [step["clients"] for step in measured["ramp"][:4]] == [1, 2, 4, 8]
    pool, tenant = (yaml.safe_load(out.read_text())[part] for part in ("pools", "tenants"))
    assert pool["tiny"]["active_tokens_max"] == told["limits"]["active_tokens_max"] == 12_800  # 0.8 of 1,000 blocks of 16
    assert pool["tiny"]["active_requests_max"] == int(0.8 * full["clients"])
    written_per_s = full["prompt_tokens_per_s"] + full["output_tokens_per_s"]
    assert tenant["acme"]["rate"] == {"tokens_per_s": int(0.8 * written_per_s)}
    assert f"# service rate {full['requests_per_s']:.2f} requests/s" in out.read_text()


def step(clients: int, per_s: float, error_ratio: float) -> Step:
    return Step(clients, 100, per_s, error_ratio, 900.0, 100.0, 0.2, 0.02, 0)


def measured(error_ratio: float = 0.05, saturation_per_s: float | None = 9.0) -> Measured:
    sizes = (("small", 64, 64), ("medium", 512, 128), ("large", 2048, 256))
    rates = [RateStep(9.0, 100, 1.0), RateStep(10.5, 100, 0.8)]
    return Measured(
        *("m", 8_192, sizes, (70, 20, 10), 1.0, 0.02, 5_000.0, 0.01),
        [step(8, 9.5, 0.1), step(16, 10.0, 0.1)],
        step(16, 10.0, error_ratio),
        rates if saturation_per_s else rates[1:],
        saturation_per_s,
    )


def test_C4_the_fewest_that_bring_nearly_the_most_in_time_are_enough() -> None:
    ramp = [step(1, 2.0, 0.1), step(8, 9.6, 0.1), step(16, 10.0, 0.1), replace(step(32, 12.0, 0.1), ttft_p95_s=3.0)]
    assert enough(ramp, 1.0) == 8
    assert enough(ramp, 4.0) == 32
    assert enough(ramp, 0.1) == 1, "none is in time: one at a time is as near as it comes"


def found() -> Found:
    return Found("vllm", "vLLM 0.32.0", ("m",), 8_192, 16_000, 16, None, ("E1", "E3a"), ())


def test_C4_the_file_tells_what_was_measured_and_what_it_is_worth() -> None:
    text = first_file(found(), "http://127.0.0.1:8000", None, "2026-11-30", measured())
    assert "# service rate 10.00 requests/s (±5%), kept full by 16 clients" in text
    assert "# alone: 5,000 tokens/s read after 20 ms, 10.0 ms a token written" in text
    assert "# saturation: 9.00 requests/s and not at 10.50 (first token within 1 s for 99 %)" in text
    assert "active_requests_max: 12" in text and "# [measured] 0.8 of the 16 that kept it full" in text
    assert "rate: {tokens_per_s: 800}" in text
    wide = first_file(found(), "http://127.0.0.1:8000", None, "2026-11-30", measured(error_ratio=0.3))
    assert "(±30%: WIDER than 10 %, give it more minutes)" in wide
    late = first_file(found(), "http://127.0.0.1:8000", None, "2026-11-30", measured(saturation_per_s=None))
    assert "# saturation: below 10.50 requests/s" in late
    assert measured_requests_max(measured()) == 12


def test_a_measured_file_says_where_every_value_comes_from() -> None:
    text = first_file(found(), "http://127.0.0.1:8000", None, "2026-11-30", measured())
    for line in text.splitlines():
        value = line.strip().partition("#")[0].strip()
        if value and not value.endswith(":"):
            assert any(source in line for source in ("# [engine] ", "# [default] ", "# [measured] ")), line


@pytest.mark.parametrize("mix", ["70/20", "70/20/20", "a/b/c", "70/-20/50", ""])
def test_a_mix_that_makes_no_hundred_is_told(mix: str, capsys: Capture) -> None:
    assert headworks(["calibrate", "http://127.0.0.1:9", "--mix", mix]) == 2
    assert "three whole numbers that make 100" in capsys.readouterr().err
    assert shares_of("0/0/100") == (0, 0, 100)


def test_a_file_that_is_there_is_not_written_over_after_minutes_of_measuring(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "h.yaml"
    out.write_text("mine")
    assert headworks(["calibrate", "http://127.0.0.1:9", "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_where_there_is_no_engine_nothing_is_written(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "h.yaml"
    assert headworks(["calibrate", "http://127.0.0.1:9", "--out", str(out)]) == 2
    assert "headworks calibrate: " in capsys.readouterr().err
    assert not out.exists()

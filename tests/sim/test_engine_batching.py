"""`ContinuousBatching`, step by step. The `tiny` engine: steps of 10 ms, 64 tokens a step, four sequences, 19 blocks of 16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import Finished, FirstToken, Held, Output, Preempted, Submitted, Tokens
from headworks.sim.presets import StepCost, tiny, vllm_cpu_tiny


def ended(outputs: list[Output]) -> dict[str, tuple[str, float]]:
    return {output.execution: (output.reason, output.at_s) for output in outputs if isinstance(output, Finished)}


def first(outputs: list[Output]) -> dict[str, float]:
    return {output.execution: output.at_s for output in outputs if isinstance(output, FirstToken)}


def submit(engine: ContinuousBatching, execution: str, prompt: int, output: int, now_s: float = 0.0, samples: int = 1) -> None:
    assert engine.submit(execution, prompt, output, samples, (), now_s) == Submitted.ACCEPTED


def test_G1_a_token_comes_with_every_step() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 10, 3)
    outputs = engine.advance(1.0)
    assert outputs == [
        FirstToken("a", 0.01),
        Tokens("a", 0, 1, 0.01),
        Tokens("a", 0, 1, 0.02),
        Tokens("a", 0, 1, 0.03),
        Finished("a", "stop", 0.03),
    ]
    assert engine.sample(1.0).iterations == 3
    assert engine.next_s() is None


def test_G1_a_long_prompt_is_computed_in_chunks() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 129, 1)
    assert first(engine.advance(1.0)) == {"a": 0.03}


def test_G1_decodes_take_the_token_budget_before_prompts() -> None:
    engine = ContinuousBatching(tiny())
    for name in "abc":
        submit(engine, name, 4, 20)
    engine.advance(0.01)
    submit(engine, "d", 64, 1, now_s=0.015)
    # The step at 0.02 has 61 tokens left beside three decodes, so the prompt of 64 needs a second one.
    assert first(engine.advance(0.5))["d"] == 0.04


def test_G1_the_fifth_sequence_waits_for_a_seat() -> None:
    engine = ContinuousBatching(tiny())
    for name in "abcd":
        submit(engine, name, 4, 5)
    submit(engine, "e", 4, 1)
    engine.advance(0.03)
    seen = engine.sample(0.03)
    assert (seen.running, seen.waiting) == (4, 1)
    assert first(engine.advance(1.0))["e"] == 0.06


@pytest.mark.parametrize(("lag_steps", "gone_s"), [(0, 0.06), (3, 0.09)])
def test_G1_an_abort_takes_effect_at_a_later_boundary(lag_steps: int, gone_s: float) -> None:
    engine = ContinuousBatching(replace(tiny(), abort_lag_steps=lag_steps))
    submit(engine, "a", 2, 100)
    engine.advance(0.055)
    engine.abort("a", 0.055)
    assert engine.held(gone_s - 0.001) == {"a": Held(1, 16)}
    assert engine.held(gone_s) == {}
    assert ended(engine.advance(gone_s)) == {"a": ("abort", gone_s)}


def test_G1_an_abort_of_a_waiting_request_leaves_its_place() -> None:
    engine = ContinuousBatching(replace(tiny(), running_max=1))
    submit(engine, "a", 10, 3)
    submit(engine, "b", 10, 3)
    submit(engine, "c", 10, 3)
    engine.abort("b", 0.005)
    assert ended(engine.advance(1.0)) == {"b": ("abort", 0.01), "a": ("stop", 0.03), "c": ("stop", 0.06)}


def test_G1_gauges_are_those_of_the_last_finished_step() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 10, 100)
    submit(engine, "b", 10, 100)
    assert engine.sample(0.009).running == 0
    assert set(engine.held(0.009)) == {"a", "b"}
    assert engine.sample(0.01).running == 2
    engine.abort("a", 0.055)
    # It left at 0.06, but the figures of the step that ended there still count it.
    assert set(engine.held(0.06)) == {"b"}
    assert engine.sample(0.06).running == 2
    assert engine.sample(0.07).running == 1


def test_G1_preemption_takes_the_newest_and_computes_it_again() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "old", 144, 50)
    submit(engine, "new", 144, 50)
    outputs = engine.advance(0.05)
    assert first(outputs) == {"old": 0.03, "new": 0.05}
    # 9 + 10 blocks of 19 are held when `new` needs its tenth.
    assert outputs[-1] == Preempted("new", 0, 0.05)
    assert engine.held(0.055) == {"old": Held(1, 160), "new": Held(1, 0)}
    seen = engine.sample(0.1)
    assert (seen.running, seen.waiting, seen.preemptions) == (1, 1, 0)
    outputs = engine.advance(2.0)
    # `old` makes one token a step from step 3 on: the 50th in step 52. Then 145 tokens are computed in three steps.
    assert ended(outputs) == {"old": ("stop", 0.52), "new": ("stop", 1.03)}
    assert sum(output.tokens for output in outputs if isinstance(output, Tokens) and output.execution == "new") == 49
    seen = engine.sample(2.0)
    assert (seen.preemptions, seen.prompt_tokens, seen.output_tokens) == (1, 288, 100)


def test_G1_a_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 160, 2)
    submit(engine, "b", 160, 2)
    # 10 of 19 blocks are taken, and b's prompt needs 10: it waits although its first chunk would fit.
    assert engine.sample(0.03).waiting == 1
    assert first(engine.advance(1.0)) == {"a": 0.03, "b": 0.07}


def test_G1_equal_prefixes_share_blocks_and_are_not_computed_twice() -> None:
    engine = ContinuousBatching(tiny())
    engine.submit("a", 64, 10, 1, ("w", "x", "y", "z"), 0.0)
    engine.advance(0.01)
    engine.submit("b", 64, 10, 1, ("w", "x", "y", "z"), 0.01)
    engine.advance(0.035)
    # Three blocks are shared; the last one is computed again because its last token must be. Both have grown by one.
    assert engine.used_tokens() == (3 + 2 + 2) * 16
    engine.advance(1.0)
    assert engine.sample(1.0).cached_tokens == 48
    assert engine.used_tokens() == 0
    engine.submit("c", 65, 1, 1, ("w", "x", "y", "z"), 1.0)
    engine.advance(2.0)
    assert engine.sample(2.0).cached_tokens == 48 + 64


def test_G1_the_queue_limit_counts_sequences_inside() -> None:
    engine = ContinuousBatching(replace(tiny(), queued_max=3))
    submit(engine, "a", 4, 5)
    submit(engine, "b", 4, 5, samples=2)
    assert engine.submit("c", 4, 5, 1, (), 0.0) == Submitted.BUSY
    engine.advance(1.0)
    assert engine.submit("c", 4, 5, 1, (), 1.0) == Submitted.ACCEPTED
    engine.advance(2.0)
    assert engine.submit("d", 4, 5, 4, (), 2.0) == Submitted.BUSY


def test_G1_what_can_never_fit_is_not_taken() -> None:
    engine = ContinuousBatching(tiny())
    assert engine.submit("a", 300, 5, 1, (), 0.0) == Submitted.TOO_LONG
    assert engine.submit("b", 300, 4, 1, (), 0.0) == Submitted.ACCEPTED


def test_G1_each_sample_is_a_sequence_with_its_own_memory() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 20, 3, samples=3)
    assert engine.held(0.015) == {"a": Held(3, 96)}
    outputs = engine.advance(1.0)
    assert ended(outputs) == {"a": ("stop", 0.03)}
    assert [output.sample for output in outputs if isinstance(output, Tokens)] == [0, 1, 2] * 3


def test_G1_a_hung_engine_stands_still_and_its_gauges_freeze() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 10, 5)
    engine.pause(0.015)
    submit(engine, "b", 10, 5, now_s=0.5)
    engine.abort("a", 0.6)
    assert engine.next_s() is None or engine.next_s() == 0.01
    engine.advance(0.7)
    seen = engine.sample(0.7)
    assert (seen.running, seen.iterations) == (1, 1)
    assert set(engine.held(0.7)) == {"a", "b"}
    engine.resume(1.015)
    outputs = engine.advance(3.0)
    assert ended(outputs) == {"a": ("abort", 1.02), "b": ("stop", 1.07)}


def test_G1_a_restart_forgets_everything_and_counts_from_zero() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 10, 50)
    submit(engine, "b", 10, 50)
    engine.advance(0.1)
    assert engine.restart(0.105) == ["a", "b"]
    assert engine.held(0.105) == {}
    seen = engine.sample(0.2)
    assert (seen.incarnation, seen.running, seen.iterations, seen.output_tokens) == (2, 0, 0, 0)
    assert engine.next_s() is None


def test_G1_a_slow_engine_takes_the_factor_longer() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "a", 10, 3)
    engine.advance(0.005)
    engine.slow(3.0)
    assert ended(engine.advance(1.0)) == {"a": ("stop", 0.07)}


def test_G1_coarse_reports_tell_the_same_tokens() -> None:
    engine = ContinuousBatching(replace(tiny(), report_tokens=8))
    submit(engine, "a", 10, 20)
    outputs = engine.advance(1.0)
    assert [output.tokens for output in outputs if isinstance(output, Tokens)] == [1, 8, 8, 3]
    assert ended(outputs) == {"a": ("stop", 0.2)}


@pytest.mark.parametrize(("streams", "measured_s"), [(1, 0.0032), (8, 0.005), (32, 0.0084), (64, 0.0158)])
def test_G1_the_cpu_preset_decodes_as_measured(streams: int, measured_s: float) -> None:
    engine = ContinuousBatching(replace(vllm_cpu_tiny(), front_s=0.0))
    for stream in range(streams):
        submit(engine, str(stream), 8, 200)
    outputs = engine.advance(60.0)
    gap_s = (ended(outputs)["0"][1] - first(outputs)["0"]) / 199
    assert gap_s == pytest.approx(measured_s, rel=0.12)


def test_G1_the_cpu_preset_reads_a_prompt_as_measured() -> None:
    engine = ContinuousBatching(vllm_cpu_tiny())
    submit(engine, "a", 4000, 1)
    assert first(engine.advance(5.0))["a"] == pytest.approx(0.63, rel=0.1)


def test_G1_a_step_costs_what_it_computes_and_reads() -> None:
    cost = StepCost(base_s=0.01, prefill_token_s=0.001, attention_s=1e-6, sequence_s=0.002, kv_token_s=0.0001)
    engine = ContinuousBatching(replace(tiny(), cost=cost))
    submit(engine, "a", 100, 3)
    ends = [output.at_s for output in engine.advance(10.0) if isinstance(output, Tokens)]
    # 64 then 36 tokens of prompt, seeing 64 and 100; then one sequence that reads 101 and 102.
    first_s = (0.01 + 0.064 + 64 * 64e-6) + (0.01 + 0.036 + 36 * 100e-6)
    assert ends == pytest.approx([first_s, first_s + 0.0221, first_s + 2 * 0.0221 + 0.0001])


def test_G1_small_steps_last_as_long_as_reading_the_weights() -> None:
    cost = StepCost(base_s=0.001, prefill_token_s=0.001, attention_s=0.0, sequence_s=0.0, kv_token_s=0.0, floor_s=0.02)
    engine = ContinuousBatching(replace(tiny(), cost=cost))
    submit(engine, "a", 40, 2)
    assert [output.at_s for output in engine.advance(1.0) if isinstance(output, Tokens)] == [0.041, 0.061]


def test_G1_what_left_is_no_longer_read() -> None:
    cost = StepCost(base_s=0.01, prefill_token_s=0.0, attention_s=0.0, sequence_s=0.0, kv_token_s=0.001)
    engine = ContinuousBatching(replace(tiny(), cost=cost))
    submit(engine, "aborted", 50, 100)
    submit(engine, "ended", 20, 4)
    engine.advance(0.2)
    engine.abort("aborted", 0.2)
    engine.advance(10.0)
    submit(engine, "b", 10, 3, now_s=10.0)
    assert ended(engine.advance(20.0)) == {"b": ("stop", 10.053)}

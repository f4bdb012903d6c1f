"""Sizes of engine models, by name.

The GPU presets are the suggested starting points of November 2026, to be replaced by a measurement of the engine at
hand: only multiples of a *measured* saturation mean anything across engines. Weight reads are inside `base_s`; KV reads
run at 80 % of the memory's bandwidth with 128 KiB per token (8B model, grouped heads). Attention is derived, not
measured: 0.52 MFLOP per pair of tokens at half the peak rate, halved because a token sees only what is before it.

`vllm_cpu_tiny` follows a real vLLM 0.32.0 with a 5 M-parameter model on two CPU cores: a token alone every 3.2 ms,
5 / 8.4 / 15.8 ms at 8 / 32 / 64 streams, 4,000 prompt tokens in 0.63 s, 524,288 KV tokens in blocks of 128.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class StepCost:
    """The coefficients of the step time, in seconds."""

    base_s: float
    prefill_token_s: float
    attention_s: float
    """Per (chunk token × context token)."""
    sequence_s: float
    kv_token_s: float
    floor_s: float = 0.0
    """Reading the weights takes this long however small the step."""

    def duration_s(self, prefill_tokens: int, attention: int, decoding: int, kv_tokens: int) -> float:
        """The time of one step."""
        return max(
            self.floor_s,
            self.base_s
            + self.prefill_token_s * prefill_tokens
            + self.attention_s * attention
            + self.sequence_s * decoding
            + self.kv_token_s * kv_tokens,
        )


@dataclass(slots=True)
class BatchingSettings:
    """The size of an engine. Names in brackets are the real engine's flags."""

    cost: StepCost
    running_max: int
    """[max_num_seqs]"""
    batch_tokens_max: int
    """[max_num_batched_tokens], at least `running_max`."""
    kv_blocks: int
    """[num_gpu_blocks]; one of them is reserved."""
    block_tokens: int = 16
    queued_max: int | None = None
    """[max_num_queued_reqs]: sequences inside, running and waiting, beyond which a request is answered busy."""
    front_s: float = 0.0
    """What the serial front end takes for a request before the scheduler sees it."""
    abort_lag_steps: int = 0
    """Whole steps an abort is late beyond the next boundary."""
    report_tokens: int = 1
    """A sequence reports after so many tokens (and at its first and last): coarser is faster."""


@dataclass(slots=True)
class FixedRateSettings:
    """A server of known rate: `servers` seats, each taking exactly `servers ÷ rate_per_s` a request."""

    rate_per_s: float
    servers: int = 1
    prefill_ratio: float = 0.1
    """The share of the service time after which the first token is there."""
    tick_s: float = 0.01
    """Its progress clock ticks so often while it serves; an abort takes effect at the next tick."""
    queued_max: int | None = None
    kv_tokens: int = 1_000_000
    block_tokens: int = 1


def a100_8b() -> BatchingSettings:
    """An 8B model on one A100."""
    return BatchingSettings(
        cost=StepCost(base_s=9.7e-3, prefill_token_s=66e-6, attention_s=1.7e-9, sequence_s=20e-6, kv_token_s=0.08e-6),
        running_max=256,
        batch_tokens_max=2048,
        kv_blocks=26_876,
    )


def h100_8b() -> BatchingSettings:
    """An 8B model on one H100."""
    return BatchingSettings(
        cost=StepCost(base_s=5.8e-3, prefill_token_s=22e-6, attention_s=0.6e-9, sequence_s=10e-6, kv_token_s=0.05e-6),
        running_max=1024,
        batch_tokens_max=8192,
        kv_blocks=26_876,
    )


def vllm_cpu_tiny() -> BatchingSettings:
    """The real engine the project tests against."""
    return BatchingSettings(
        cost=StepCost(base_s=3.0e-3, prefill_token_s=110e-6, attention_s=14e-9, sequence_s=0.195e-3, kv_token_s=0.0),
        running_max=128,
        batch_tokens_max=2048,
        kv_blocks=4097,
        block_tokens=128,
        front_s=3.0e-3,
    )


def tiny() -> BatchingSettings:
    """For tests: 19 blocks of 16 tokens, four sequences, steps of 10 ms."""
    return BatchingSettings(
        cost=StepCost(base_s=10e-3, prefill_token_s=0.0, attention_s=0.0, sequence_s=0.0, kv_token_s=0.0),
        running_max=4,
        batch_tokens_max=64,
        kv_blocks=20,
    )


PRESETS: dict[str, Callable[[], BatchingSettings]] = {
    "a100_8b": a100_8b,
    "h100_8b": h100_8b,
    "vllm_cpu_tiny": vllm_cpu_tiny,
    "tiny": tiny,
}

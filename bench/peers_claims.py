"""What is claimed of headworks beside its peers: ratios of figures of one run, and bounds, with bar and stretch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OURS = "headworks"
Figures = dict[str, dict[str, float]]


@dataclass(slots=True)
class Claim:
    """One line of the table. With a peer: our figure ÷ theirs, or theirs ÷ ours where `is_least`."""

    text: str
    figure: str
    must: float
    stretch: float
    peer: str | None = None
    is_least: bool = False
    """The value must be at least its bar, not at most."""

    def value(self, figures: Figures) -> float | None:
        """None where it was not measured."""
        ours = figures.get(OURS, {}).get(self.figure)
        if self.peer is None or ours is None:
            return ours
        theirs = figures.get(self.peer, {}).get(self.figure)
        if theirs is None:
            return None
        return theirs / ours if self.is_least else ours / theirs

    def holds(self, value: float, bar: float) -> bool:
        return value >= bar if self.is_least else value <= bar


CPU, CPU_32K, CHUNK, ALONE = "cpu_us_per_request", "cpu_us_per_request_32k", "cpu_us_per_chunk", "added_p50_us"
CLAIMS = (
    Claim("requests per CPU second ÷ Envoy's", CPU, 1.1, 1.5, "envoy", is_least=True),
    Claim("requests per CPU second ÷ vllm-router's", CPU, 1.5, 2.0, "vllm_router", is_least=True),
    Claim("requests per CPU second ÷ sglang-router's", CPU, 2.2, 3.0, "sglang_router", is_least=True),
    Claim("requests per CPU second ÷ LiteLLM's", CPU, 200.0, 300.0, "litellm", is_least=True),
    Claim("CPU a request ÷ nginx's", CPU, 2.2, 1.7, "nginx"),
    Claim("per CPU second, journal ÷ memory", "journal_of_memory", 0.85, 0.9, is_least=True),
    Claim("per CPU second, Valkey ÷ memory", "valkey_of_memory", 0.55, 0.7, is_least=True),
    Claim("CPU a request of 32 KB ÷ vllm-router's", CPU_32K, 0.8, 0.6, "vllm_router"),
    Claim("CPU a chunk ÷ nginx's", CHUNK, 1.5, 1.2, "nginx"),
    Claim("CPU a chunk ÷ vllm-router's", CHUNK, 1.15, 1.0, "vllm_router"),
    Claim("added to a chunk, p50, µs", "added_chunk_p50_us", 400, 200),
    Claim("added to a chunk, p99, µs", "added_chunk_p99_us", 3_000, 1_000),
    Claim("added to an answer alone, p50 ÷ nginx's", ALONE, 1.6, 1.3, "nginx"),
    Claim("added to an answer alone, p50 ÷ vllm-router's", ALONE, 1.0, 1.0, "vllm_router"),
    Claim("added to an answer alone, p50 ÷ sglang-router's", ALONE, 1.0, 1.0, "sglang_router"),
    Claim("refusals ÷ admissions per CPU second", "refusals_of_admitted", 3.0, 5.0, is_least=True),
    Claim("good p99 beside 5,000 refusals/s ÷ alone", "flood_p99_ratio", 1.5, 1.5),
    Claim("memory idle, MiB", "rss_mib", 60, 40),
    Claim("memory for each open stream, KiB", "kib_per_stream", 12, 6),
    Claim("streams left in the engine after 1 s", "left_calm", 0, 0),
    Claim("streams left after 1 s, under overload", "left_overload", 0, 0),
)


def claims(figures: Figures) -> dict[str, dict[str, Any]]:
    """Every claim that this run can judge."""
    judged = {}
    for claim in CLAIMS:
        value = claim.value(figures)
        if value is not None:
            judged[claim.text] = {
                "value": round(value, 3),
                "bar": claim.must,
                "stretch_bar": claim.stretch,
                "at_least": claim.is_least,
                "must": claim.holds(value, claim.must),
                "stretch": claim.holds(value, claim.stretch),
            }
    return judged

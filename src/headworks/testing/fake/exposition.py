"""The fake engine's `/metrics`: the series of vLLM 0.32.0 that say something about load, time and tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from headworks.sim.engine import EngineModel, Gauges

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LONG_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Histogram:
    """Counts under upper bounds, and a sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        lines, total = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts or [0] * (len(self.bounds) + 1), strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}.0')
        return [*lines, f"{name}_count{{{labels}}} {total}.0", f"{name}_sum{{{labels}}} {self.sum}"]


@dataclass(slots=True)
class Counters:
    """What the API server counts itself. A restart begins with a new one. Aborted requests appear nowhere."""

    started_s: float
    """Unix time: the incarnation as the adapter sees it."""
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    busy: int = 0
    responses: dict[tuple[str, str, str], int] = field(default_factory=dict)
    ttft_s: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(_LONG_SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))


def exposition(model: EngineModel, gauges: Gauges, counters: Counters, model_name: str, context_tokens: int) -> list[str]:
    """Lines in the text format, without the last newline."""
    labels = f'engine="0",model_name="{model_name}"'
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {counters.started_s}",
        *_single("num_requests_running", "gauge", gauges.running, labels),
        *_single("num_requests_waiting", "gauge", gauges.waiting, labels),
        *_by("num_requests_waiting_by_reason", "gauge", "reason", {"capacity": gauges.waiting, "deferred": 0}, labels),
        *_single("kv_cache_usage_perc", "gauge", gauges.kv_used_ratio, labels),
        *_by("engine_sleep_state", "gauge", "sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}, labels),
        *_single("num_preemptions_total", "counter", gauges.preemptions, labels),
        *_single("prefix_cache_queries_total", "counter", gauges.prompt_tokens, labels),
        *_single("prefix_cache_hits_total", "counter", gauges.cached_tokens, labels),
        *_single("prompt_tokens_total", "counter", gauges.prompt_tokens, labels),
        *_single("prompt_tokens_cached_total", "counter", gauges.cached_tokens, labels),
        *_single("generation_tokens_total", "counter", gauges.output_tokens, labels),
        *_by("request_success_total", "counter", "finished_reason", counters.finished, labels),
        "# TYPE vllm:admission_rejections_total counter",
        f'vllm:admission_rejections_total{{model_name="{model_name}",reason="max_num_queued_reqs"}} {float(counters.busy)}',
        f'vllm:admission_rejections_total{{model_name="{model_name}",reason="max_num_queued_tokens"}} 0.0',
        "# TYPE vllm:iteration_tokens_total histogram",
        f'vllm:iteration_tokens_total_bucket{{{labels},le="+Inf"}} {float(gauges.iterations)}',
        f"vllm:iteration_tokens_total_count{{{labels}}} {float(gauges.iterations)}",
        f"vllm:iteration_tokens_total_sum{{{labels}}} {float(gauges.prompt_tokens + gauges.output_tokens)}",
        *counters.ttft_s.lines("vllm:time_to_first_token_seconds", labels),
        *counters.e2e_s.lines("vllm:e2e_request_latency_seconds", labels),
        *counters.prompt_tokens.lines("vllm:request_prompt_tokens", labels),
        *counters.output_tokens.lines("vllm:request_generation_tokens", labels),
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{{{_cache_labels(model, context_tokens)}}} 1.0",
        "# TYPE http_requests_total counter",
    ]
    for (path, method, status), count in counters.responses.items():
        lines.append(f'http_requests_total{{handler="{path}",method="{method}",status="{status}"}} {float(count)}')
    return lines


def _single(name: str, kind: str, value: float, labels: str) -> list[str]:
    return [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {float(value)}"]


def _by(name: str, kind: str, label: str, values: Mapping[str, int], labels: str) -> list[str]:
    lines = [f'vllm:{name}{{{labels},{label}="{key}"}} {float(value)}' for key, value in values.items()]
    return [f"# TYPE vllm:{name} {kind}", *lines]


def _cache_labels(model: EngineModel, context_tokens: int) -> str:
    """Capacity lives in labels. One block of `num_gpu_blocks` is reserved, and still counted in the size in tokens."""
    blocks = model.kv_tokens // model.block_tokens + 1
    size = blocks * model.block_tokens
    return (
        f'block_size="{model.block_tokens}",enable_prefix_caching="True",engine="0",'
        f'kv_cache_max_concurrency="{size / context_tokens}",kv_cache_size_tokens="{size}",num_gpu_blocks="{blocks}"'
    )


def damaged(lines: list[str], drop: set[str], rename: Mapping[str, str]) -> list[str]:
    """The same without some series, or with others under a new name. A name stands for its `_total`, `_bucket` … too."""
    kept: list[str] = []
    for line in lines:
        name = line.split()[2] if line.startswith("#") else line.partition("{")[0].partition(" ")[0]
        if any(_is_part(name, gone) for gone in drop):
            continue
        for old, new in rename.items():
            if _is_part(name, old):
                line = line.replace(old, new, 1)
        kept.append(line)
    return kept


def _is_part(name: str, family: str) -> bool:
    return name == family or name.startswith(family + "_")

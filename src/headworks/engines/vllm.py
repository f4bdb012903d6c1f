"""vLLM: the disconnect is the abort, the iteration counter is the clock, the start time is the incarnation.

What rests on what (observed on 0.32; `headworks.testing.suites.engine` is the proof to repeat on another version):

* A half-closed connection is a gone client: vLLM aborts within a few engine iterations and closes its side at once.
  So `on_closed`, then an iteration count that has moved on by a few, proves the stop (E3a). Every data-parallel rank
  has its own counter.
* `num_requests_running + num_requests_waiting` count what is inside, children of one request each (E3b).
* `process_start_time_seconds` with the size of the KV cache names the incarnation (E4). With several API servers the
  page has no start time: then there is no E4, and `describe` says so.
* A missing series is not zero. It is None, takes its evidence away, and stands in the notes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from headworks.core.types import Capacity, ReplicaSample
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look, look_at_models, look_at_routes
from headworks.engines.metrics_text import series, summed_by, value
from headworks.engines.outbox import Outbox
from headworks.engines.pool import Pool

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
_ITERATIONS = b"vllm:iteration_tokens_total_count"
_PREEMPTIONS = b"vllm:num_preemptions_total"
_CACHE_CONFIG = b"vllm:cache_config_info"
_START_TIME = b"process_start_time_seconds"
# Newest first: the name changed once, and operators run both.
_KV_USED = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
SERIES: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((_RUNNING,), "load, and the counting proof (E3b)"),
    ((_WAITING,), "load, and the counting proof (E3b)"),
    ((_ITERATIONS,), "the clock proof (E3a)"),
    ((_START_TIME,), "a restart as proof (E4)"),
    (_KV_USED, "memory headroom"),
    ((_PREEMPTIONS,), "over-commit, and its alert"),
    ((_CACHE_CONFIG,), "how much its memory holds"),
)
"""What is read, by any of its names, and what it is for: `headworks doctor` says which of them a version lacks."""
_BUSY_WORDS = ("currently busy", "prefill token backlog")
_BLOCK_TOKENS_UNKNOWN = 16


class VllmEngine:
    """One vLLM server (`engines.base.Engine`)."""

    usage_each = False

    def __init__(
        self,
        replica: str,
        url: str,
        clock_s: Callable[[], float],
        api_key: str | None = None,
        *,
        ca: str | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.replica = replica
        self.evidence: tuple[str, ...] = ("E1", "E3a", "E3b", "E4")
        self._endpoint = Endpoint(url, api_key, ca)
        self._clock_s = clock_s
        self._executions = Pool(self._endpoint, clock_s, outbox=outbox)
        self.run = self._executions.run
        """See `Engine.run`."""
        self._looks = Pool(self._endpoint, clock_s)

    def is_busy(self, status: int, payload: bytes) -> bool:
        """Its two admission valves. A 500 that says it shuts down is not among them: what it started is not known."""
        if status != 503:
            return False
        try:
            message = msgspec.json.decode(payload, type=_Refusal).error.message
        except msgspec.DecodeError:
            return False
        return any(words in message for words in _BUSY_WORDS)

    async def describe(self) -> Capacity:
        """Context and names from `/v1/models`, memory and what can be proved from `/metrics`."""
        models = await look_at_models(self._looks)
        contexts = [model.max_model_len for model in models if model.max_model_len]
        if not contexts:
            raise EngineError(f"{self._endpoint.url}/v1/models states no max_model_len: this is not vLLM, or a proxy hides it")
        version = await self._version()
        page = await self._metrics()
        memory = _Memory(page)
        evidence, notes = self._provable(page)
        self.evidence = evidence
        return Capacity(
            replica=self.replica,
            engine="vllm",
            version=version,
            incarnation=_incarnation(page, memory),
            context_tokens=min(contexts),
            kv_tokens=memory.kv_tokens,
            block_tokens=memory.block_tokens or _BLOCK_TOKENS_UNKNOWN,
            running_max=None,
            evidence=evidence,
            models=tuple(model.id for model in models),
            notes=memory.notes + notes,
            routes=await look_at_routes(self._looks),
        )

    async def _version(self) -> str:
        seen = await look(self._looks, "/version")
        try:
            return msgspec.json.decode(seen.payload, type=_Version).version if seen.status == 200 else "unknown"
        except msgspec.DecodeError:
            return "unknown"

    def _provable(self, page: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The evidence this page can bear, and a sentence for each piece that is missing."""
        levels, notes = ["E1"], []
        if self._endpoint.tls is not None:
            notes.append("TLS has no half-close, so there is no clock proof (E3a)")
        elif not summed_by(page, _ITERATIONS, "engine"):
            notes.append(f"{_ITERATIONS.decode()} is missing: no clock proof (E3a); was it started with --disable-log-stats?")
        else:
            levels.append("E3a")
        if value(page, _RUNNING) is None or value(page, _WAITING) is None:
            notes.append(f"{_RUNNING.decode()} or {_WAITING.decode()} is missing: no counting proof (E3b)")
        else:
            levels.append("E3b")
        if value(page, _START_TIME) is None:
            notes.append(f"{_START_TIME.decode()} is missing (--api-server-count over 1?): a restart proves nothing (no E4)")
        else:
            levels.append("E4")
        if _kv_used_ratio(page) is None:
            notes.append("no KV usage gauge: the memory headroom gate cannot see this engine")
        return tuple(levels), tuple(notes)

    async def sample(self) -> ReplicaSample:
        """One page of metrics, on its own connection."""
        begun_s = self._clock_s()
        page = await self._metrics()
        ended_s = self._clock_s()
        iterations = summed_by(page, _ITERATIONS, "engine")
        running = summed_by(page, _RUNNING, "engine")
        waiting = summed_by(page, _WAITING, "engine")
        preemptions = value(page, _PREEMPTIONS)
        ranks = sorted(iterations, key=_rank_order)
        loads_known = bool(ranks) and running.keys() == waiting.keys() == iterations.keys()
        return ReplicaSample(
            replica=self.replica,
            incarnation=_incarnation(page, _Memory(page)),
            begun_s=begun_s,
            ended_s=ended_s,
            iterations=tuple(int(iterations[rank]) for rank in ranks) if ranks else None,
            running=int(sum(running.values())) if running else None,
            waiting=int(sum(waiting.values())) if waiting else None,
            kv_used_ratio=_kv_used_ratio(page),
            compute_used_ratio=None,
            preemptions_total=None if preemptions is None else int(preemptions),
            rank_loads=tuple(int(running[rank] + waiting[rank]) for rank in ranks) if loads_known else None,
        )

    async def _metrics(self) -> bytes:
        seen = await look(self._looks, "/metrics")
        if seen.status != 200:
            raise EngineError(f"GET {self._endpoint.url}/metrics: status {seen.status}, expected 200")
        return seen.payload

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._executions.close()
        await self._looks.close()


class _Memory:
    """What `cache_config_info` says in its labels: one line for each data-parallel rank."""

    __slots__ = ("block_tokens", "kv_tokens", "notes")

    def __init__(self, page: bytes) -> None:
        self.kv_tokens: int | None = None
        self.block_tokens: int | None = None
        self.notes: tuple[str, ...] = ()
        try:
            for labels, _ in series(page, _CACHE_CONFIG):
                self.block_tokens = int(labels["block_size"])
                # One block is the engine's own: it stands for nothing and is never handed out.
                rank_tokens = (int(labels["num_gpu_blocks"]) - 1) * self.block_tokens
                self.kv_tokens = (self.kv_tokens or 0) + rank_tokens
        except (KeyError, ValueError):
            self.kv_tokens = self.block_tokens = None
        if self.kv_tokens is None:
            self.notes = (f"{_CACHE_CONFIG.decode()} is missing or unreadable: how much its memory holds is not known",)


def _incarnation(page: bytes, memory: _Memory) -> str:
    """The same for one life of the server and different for the next; without a start time it never changes."""
    started_s = value(page, _START_TIME)
    return f"{'unknown' if started_s is None else f'{started_s:.2f}'}/{memory.kv_tokens or 'unknown'}"


def _kv_used_ratio(page: bytes) -> float | None:
    """The fullest rank's: a request lives on one of them."""
    for name in _KV_USED:
        ratios = [ratio for _, ratio in series(page, name) if math.isfinite(ratio)]
        if ratios:
            return max(ratios)
    return None


def _rank_order(label: str) -> tuple[int, str]:
    return (int(label) if label.isdecimal() else 0, label)


class _RefusalError(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _RefusalError


class _Version(msgspec.Struct):
    version: str

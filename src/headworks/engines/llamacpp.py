"""llama.cpp's server: every `llama_decode` is counted, so its clock proves a stop; who waits inside it is not heard.

What rests on what (read in b-of-2026-10's source, and how it notices a departure seen on a real one; the suite in
`headworks.testing.suites.engine` passes on a fake of it, and is the proof to repeat on a real one):

* A connection is looked at when its next event is written, or when a second has passed in which *no* request of anybody had a
  result, `/metrics` included. A stream that writes is closed within a token of its client's leaving; what waits for its first
  token, or comes in one piece, may run on for as long as others do. So nothing is queued inside it (`running_max` are its
  slots), and while a closed connection has not been let go, looks are further apart than that second.
* Before it closes its side its reader has put the cancel in front of its queue, which is worked off before each
  `llama_decode`. So `on_closed`, then `llamacpp:n_decode_total` that has moved on, prove the stop (E3a).
* `requests_processing + requests_deferred` count what is inside (E3b). Neither moves during one `llama_decode`: a request
  that came in during one that takes longer than a lease would be missed. Batches are so long only where prompts are read
  slower than 400 tokens a second (`--batch-size`).
* `/metrics` carries the time of its start in a header (E4). It is a new one after `--sleep-idle-seconds` too, when whatever
  it held is gone as well.
* Whether its slots share one memory (`--kv-unified`, the default without `--parallel`) it does not say. Full, it fails
  everybody at once instead of preempting one, so the memory counted on is that of one slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headworks.core.types import Capacity, ReplicaSample
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import Seen, look, look_at_json, look_at_models
from headworks.engines.metrics_text import value
from headworks.engines.outbox import Outbox
from headworks.engines.pool import Pool

_RUNNING = b"llamacpp:requests_processing"
_WAITING = b"llamacpp:requests_deferred"
_DECODES = b"llamacpp:n_decode_total"
_START_TIME = b"process-start-time-unix"
SERIES: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((_RUNNING,), "load, and the counting proof (E3b)"),
    ((_WAITING,), "load, and the counting proof (E3b)"),
    ((_DECODES,), "the clock proof (E3a)"),
)
"""What is read, and what it is for; when it was started stands in a header of the page."""
_ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
)
"""By its source; what its `/tokenize` takes is not what others take. `/v1/embeddings` says 501 unless it was started for it."""
QUIET_S = 1.2
"""Its own timer that looks at connections has 1 s."""
CLOSE_S_MAX = 60.0
"""Before its first token it notices nothing: so long may a prompt take to be read before a closed connection is given up."""


class LlamaCppEngine:
    """One llama-server (`engines.base.Engine`)."""

    usage_each = True

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
        self._executions = Pool(self._endpoint, clock_s, outbox=outbox, close_s_max=CLOSE_S_MAX)
        self.run = self._executions.run
        """See `Engine.run`. None of the headers that make an answer outlive its client can be in the request: it is ours."""
        self._looks = Pool(self._endpoint, clock_s)
        self._looked_s = float("-inf")

    def is_busy(self, status: int, payload: bytes) -> bool:
        """Never: it defers without a bound. Its 503 says that the model is being loaded, which may end in anything."""
        return False

    async def describe(self) -> Capacity:
        """Slots and their context from `/props`, what can be proved from `/metrics`."""
        models = await look_at_models(self._looks)
        props = await look_at_json(self._looks, "/props", Props)
        page = await self._metrics()
        self.evidence, notes = self._provable(page)
        slot_tokens = props.default_generation_settings.n_ctx
        return Capacity(
            replica=self.replica,
            engine="llamacpp",
            version=props.build_info or "unknown",
            incarnation=_incarnation(page),
            context_tokens=slot_tokens,
            kv_tokens=slot_tokens,
            block_tokens=1,
            running_max=props.total_slots,
            evidence=self.evidence,
            models=tuple(model.id for model in models),
            notes=(*notes, *_about_memory(props)),
            routes=_ROUTES,
        )

    def _provable(self, page: Seen) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The evidence this page can bear, and a sentence for each piece that is missing."""
        levels, notes = ["E1"], []
        if self._endpoint.tls is not None:
            notes.append("TLS has no half-close, so there is no clock proof (E3a)")
        elif value(page.payload, _DECODES) is None:
            notes.append(f"{_DECODES.decode()} is missing: no clock proof (E3a)")
        else:
            levels.append("E3a")
        if value(page.payload, _RUNNING) is None or value(page.payload, _WAITING) is None:
            notes.append(f"{_RUNNING.decode()} or {_WAITING.decode()} is missing: no counting proof (E3b)")
        else:
            levels.append("E3b")
        if _start_time(page):
            levels.append("E4")
        else:
            notes.append("/metrics does not say when it was started: a restart proves nothing (no E4)")
        return tuple(levels), tuple(notes)

    async def sample(self) -> ReplicaSample:
        """One page of metrics, on its own connection."""
        if self._executions.half_closed_count:
            await asyncio.sleep(max(0.0, self._looked_s + QUIET_S - self._clock_s()))
        begun_s = self._clock_s()
        page = await self._metrics()
        self._looked_s = ended_s = self._clock_s()
        return ReplicaSample(
            replica=self.replica,
            incarnation=_incarnation(page),
            begun_s=begun_s,
            ended_s=ended_s,
            iterations=None if (decodes := _count(page, _DECODES)) is None else (decodes,),
            running=_count(page, _RUNNING),
            waiting=_count(page, _WAITING),
            kv_used_ratio=None,
            compute_used_ratio=None,
            preemptions_total=None,
        )

    async def _metrics(self) -> Seen:
        seen = await look(self._looks, "/metrics")
        if seen.status != 200:
            raise EngineError(
                f"GET {self._endpoint.url}/metrics: status {seen.status}, expected 200; llama-server shows them with --metrics"
            )
        return seen

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._executions.close()
        await self._looks.close()


def _count(page: Seen, name: bytes) -> int | None:
    found = value(page.payload, name)
    return None if found is None else int(found)


def _start_time(page: Seen) -> str:
    return next((text.decode("latin-1") for name, text in page.headers if name == _START_TIME), "")


def _incarnation(page: Seen) -> str:
    return _start_time(page) or "unknown"


def _about_memory(props: Props) -> tuple[str, ...]:
    """What the operator has to say, since the engine does not."""
    if props.total_slots < 2:
        return ()
    slots, slot_tokens = props.total_slots, props.default_generation_settings.n_ctx
    return (
        f"its {slots} slots are taken to share {slot_tokens} tokens; if each has as many of its own (--parallel, and no"
        f" --kv-unified), write over_commit: {slots}",
    )


class Generation(msgspec.Struct):
    n_ctx: int


class Props(msgspec.Struct):
    """`/props`, as far as it concerns us."""

    total_slots: int
    default_generation_settings: Generation
    build_info: str = ""

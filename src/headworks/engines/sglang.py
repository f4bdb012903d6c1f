"""SGLang: it is told to stop by name and by its connection; counting what is inside proves that it did.

What rests on what (read in 0.5.23's source, tested against a fake of its routes: nobody here has run it, since its kernels
want a GPU):

* `rid` in the body names a request, so each carries our execution id; `POST /abort_request` by that name stops it wherever it
  is. Its 200 proves nothing. A stream whose client left is aborted as well; an answer in one piece is looked at only every 4 s
  while it is queued, and every 50 tokens while it runs, so the abort by name is what ends it soon. Names are matched by their
  beginning: ours are all equally long.
* `GET /v1/loads` has, for each data-parallel rank, what runs and what waits as of the scheduler's last step (E3b). It needs no
  flag. It counts no steps, so there is no clock proof (E3a).
* `GET /server_info` says when it was started (E4). It is asked before each count: a count of the next life under the name of
  the last leads to nothing false, the other way round it could.
* `--max-queued-requests` refuses with 503 before anything is started, inside an answer of status 200 where it streams.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headworks.core.types import Capacity, ReplicaSample
from headworks.engines.base import Carrier, EngineError, Listener, Upstream
from headworks.engines.call import Call
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look_at_json, look_at_models, look_at_routes
from headworks.engines.outbox import Outbox
from headworks.engines.pool import Pool

_BUSY = "request queue is full"
_ABORT_S_MAX = 5.0
_LOADS = "/v1/loads?include=core"


class SglangEngine:
    """One SGLang server (`engines.base.Engine`)."""

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
        self.evidence: tuple[str, ...] = ("E1", "E3b", "E4")
        self._endpoint = Endpoint(url, api_key, ca)
        self._clock_s = clock_s
        self._executions = Pool(self._endpoint, clock_s, outbox=outbox)
        self._looks = Pool(self._endpoint, clock_s)

    def run(
        self,
        execution: str,
        path: str,
        body: bytes,
        send_before_s: float,
        listener: Listener,
        lines: bytes = b"",
        carrier: Carrier | None = None,
    ) -> Upstream:
        """See `Engine.run`. The body is ours, and no client's field of that name passes into it."""
        assert body.startswith(b"{"), "a request is an object"
        named = b'{"rid":"%b"%b%b' % (execution.encode(), b"" if body == b"{}" else b",", body[1:])
        call = self._executions.run(execution, path, named, send_before_s, listener, lines, carrier)
        return _Named(execution, call, self)

    def abort_by_name(self, execution: str) -> None:
        """Tell it, and wait for nothing: what comes of it is seen in its counts."""
        body = b'{"rid":"%b"}' % execution.encode()
        head = self._endpoint.post(execution, "/abort_request", body)
        self._looks.send(head, body, self._clock_s() + _ABORT_S_MAX, _Unheard())

    def is_busy(self, status: int, payload: bytes) -> bool:
        """Its waiting queue is full. That a higher priority took the place is not among them: we give none."""
        if status != 503:
            return False
        try:
            refusal = msgspec.json.decode(payload, type=_Refusal)
        except msgspec.DecodeError:
            return False
        return _BUSY in (refusal.error.message if refusal.error is not None else refusal.message)

    async def describe(self) -> Capacity:
        """Context and names from `/v1/models`, memory and places from `/v1/loads`, its life from `/server_info`."""
        models = await look_at_models(self._looks)
        contexts = [model.max_model_len for model in models if model.max_model_len]
        if not contexts:
            raise EngineError(
                f"{self._endpoint.url}/v1/models states no max_model_len: this is not SGLang, or a proxy hides it"
            )
        info = await self._info()
        loads = await self._loads()
        memories = [load.max_total_num_tokens for load in loads if load.max_total_num_tokens]
        places = [load.max_running_requests for load in loads if load.max_running_requests]
        levels, notes = ["E1", "E3b"], [] if memories else ["how much its memory holds is not known"]
        if info.startup_time is None:
            notes.append("/server_info has no startup_time: a restart proves nothing (no E4)")
        else:
            levels.append("E4")
        self.evidence = tuple(levels)
        return Capacity(
            replica=self.replica,
            engine="sglang",
            version=info.version,
            incarnation=_incarnation(info),
            context_tokens=min(contexts),
            kv_tokens=sum(memories) if memories else None,
            block_tokens=max(1, info.page_size),
            running_max=sum(places) if places else None,
            evidence=self.evidence,
            models=tuple(model.id for model in models),
            notes=tuple(notes),
            routes=await look_at_routes(self._looks),
        )

    async def sample(self) -> ReplicaSample:
        """Which life it is, then what is inside."""
        begun_s = self._clock_s()
        incarnation = _incarnation(await self._info())
        loads = await self._loads()
        shares = [load.token_usage for load in loads if load.token_usage is not None]
        return ReplicaSample(
            replica=self.replica,
            incarnation=incarnation,
            begun_s=begun_s,
            ended_s=self._clock_s(),
            iterations=None,
            running=sum(load.num_running_reqs for load in loads),
            waiting=sum(load.num_waiting_reqs for load in loads),
            kv_used_ratio=max(shares, default=None),
            compute_used_ratio=None,
            preemptions_total=None,
        )

    async def _info(self) -> _Info:
        return await look_at_json(self._looks, "/server_info", _Info)

    async def _loads(self) -> list[_Load]:
        loads = (await look_at_json(self._looks, _LOADS, _Loads)).loads
        if not loads:
            raise EngineError(f"GET {self._endpoint.url}{_LOADS}: no scheduler has said anything yet")
        return loads

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._executions.close()
        await self._looks.close()


class _Named:
    """An execution's way, which is also told by its name that it is over (`engines.base.Upstream`)."""

    __slots__ = ("_aborted", "_call", "_engine", "_execution")

    def __init__(self, execution: str, call: Upstream, engine: SglangEngine) -> None:
        self._execution = execution
        self._call = call
        self._engine = engine
        self._aborted = False

    def abort(self) -> None:
        """See `Upstream.abort`. What was never written needs no name."""
        if self._aborted:
            return
        self._aborted = True
        call = self._call
        written = not isinstance(call, Call) or call.connection is not None
        call.abort()
        if written:
            self._engine.abort_by_name(self._execution)

    def pause_reading(self) -> None:
        """See `Upstream.pause_reading`."""
        self._call.pause_reading()

    def resume_reading(self) -> None:
        """See `Upstream.resume_reading`."""
        self._call.resume_reading()


class _Unheard:
    """Nobody wants to know what the server says to an abort."""

    __slots__ = ()

    def on_not_sent(self, reason: str) -> None: ...

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None: ...

    def on_body(self, raw: bytes | None, payload: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_lost(self, cause: str) -> None: ...

    def on_closed(self) -> None: ...


def _incarnation(info: _Info) -> str:
    return "unknown" if info.startup_time is None else str(info.startup_time)


class _Info(msgspec.Struct):
    version: str = "unknown"
    startup_time: float | str | None = None
    page_size: int = 1


class _Load(msgspec.Struct):
    """One data-parallel rank."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    token_usage: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Load]


class _RefusalError(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """OpenAI's shape, or the same fields at the top."""

    message: str = ""
    error: _RefusalError | None = None

"""A fake engine: a model of `headworks.sim` behind the HTTP surface and metric names of vLLM, in real or compressed time.

    python -m headworks.testing.fake_engine --port 8000 --preset vllm_cpu_tiny --speed 10
    async with FakeEngine(FakeSettings(...)) as url: ...

It is as strict as the real one where evidence of stopping is concerned: a client's FIN closes this side at once, and
only one to three iterations later does the sequence leave; gauges are those of the last finished step; a hung engine
answers `/health`. It can also be worse than the real one, on purpose: see `fake/control.py` and `FakeSettings`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import ENDED, EngineModel, Finished, FirstToken, Gauges, Held, Output, Submitted, Tokens
from headworks.sim.fixed_rate import FixedRate
from headworks.sim.presets import FixedRateSettings
from headworks.testing.fake import pages, typed
from headworks.testing.fake.asked import Asked, Refused, busy, decode, parse
from headworks.testing.fake.control import control
from headworks.testing.fake.driver import Driver
from headworks.testing.fake.exposition import Counters
from headworks.testing.fake.generation import Generation, choices_of, refuse_inside
from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake.settings import FakeSettings, Faults
from headworks.testing.fake.tokenizer import block_names

CORE_DEATH_S = 0.5
"""How long the API server outlives its core."""

Handler = Callable[[Any, HttpRequest, HttpConnection], None]


class FakeEngine:
    """Start it with `async with`, or `start` and `stop`. `url` is where it listens."""

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.settings = settings or FakeSettings()
        engine = self.settings.engine
        fixed = isinstance(engine, FixedRateSettings)
        self.model: EngineModel = FixedRate(engine) if isinstance(engine, FixedRateSettings) else ContinuousBatching(engine)
        assert fixed or self.settings.context_tokens <= self.model.kv_tokens, "one request of full length must fit"
        self.connections: set[HttpConnection] = set()
        self.keep_alive_s = self.settings.keep_alive_s
        self.faults = Faults()
        self.counters = Counters(started_s=time.time())
        self.requests = 0
        """Generations taken in, over all incarnations."""
        self.dead = asyncio.Event()
        self.port = self.settings.port
        self._generations: dict[str, Generation] = {}
        self._driver: Driver | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.settings.host}:{self.port}"

    async def __aenter__(self) -> str:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> str:
        self._driver = Driver(self.model, self.settings.speed, self._deliver)
        await self._listen()
        return self.url

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpConnection(self), self.settings.host, self.port, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Everything is gone: sockets, timers, tasks."""
        self._go_deaf()
        for connection in list(self.connections):
            connection.reset()
        self._clock.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def _go_deaf(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def _clock(self) -> Driver:
        assert self._driver is not None, "not started"
        return self._driver

    # What it really does, for tests and auditors.

    def held(self) -> dict[str, Held]:
        """What is physically inside now, by the caller's `X-Request-Id`."""
        total: dict[str, Held] = {}
        for execution, held in self.model.held(self._clock.now_s()).items():
            before = total.get(request_id := self._generations[execution].request_id, Held(0, 0))
            total[request_id] = Held(before.sequences + held.sequences, before.kv_tokens + held.kv_tokens)
        self._clock.poke()
        return total

    def gauges(self) -> Gauges:
        """What a scrape begun now would say."""
        gauges = self.model.sample(self._clock.now_s())
        self._clock.poke()
        return gauges

    # Requests.

    def handle(self, request: HttpRequest, connection: HttpConnection) -> None:
        """Route one request. Generations are answered later, everything else at once."""
        if request.path.startswith("/fake/"):
            control(self, request, connection)
            return
        method, handler = self.routes().get(request.path, ("", None))
        if handler is None or (request.path == "/abort_requests" and not self.settings.developer_routes):
            connection.respond(404, b'{"detail":"Not Found"}')
        elif method != request.method:
            connection.respond(405, b'{"detail":"Method Not Allowed"}', "application/json", ("allow", method))
        else:
            try:
                handler(self, request, connection)
            except Refused as refused:
                self._count(request.path, request.method, refused.status)
                connection.respond(refused.status, refused.body, "application/json", *refused.headers)

    def _count(self, path: str, method: str, status: int) -> None:
        key = (path, method, f"{status // 100}xx")
        self.counters.responses[key] = self.counters.responses.get(key, 0) + 1

    def chat(self, request: HttpRequest, connection: HttpConnection) -> None:
        fields = decode(request.body, request.headers.get("content-type", ""))
        self.generate(lambda: self.parse(True, fields), Generation, fields, request, connection)

    def complete(self, request: HttpRequest, connection: HttpConnection) -> None:
        fields = decode(request.body, request.headers.get("content-type", ""))
        self.generate(lambda: self.parse(False, fields), Generation, fields, request, connection)

    def generate(
        self,
        parse: Callable[[], Asked],
        kind: type[Generation],
        fields: dict[str, Any],
        request: HttpRequest,
        connection: HttpConnection,
    ) -> None:
        if self.faults.core_dead or self.faults.draining:
            raise Refused(500, "cannot schedule new futures after shutdown", "InternalServerError")
        asked = parse()
        queued_max = self.settings.engine.queued_max
        sequences = asked.samples * len(asked.prompts)
        if self.faults.next_busy() or (queued_max is not None and self.model.inside + sequences > queued_max):
            self.counters.busy += sequences
            inside = asked.stream and (self.full_inside or self.faults.busy_inside)
            if not inside:
                raise self.full(inside)
            self._count(request.path, request.method, 200)
            refuse_inside(connection, self.full(inside))
            return
        request_id = self.request_id(request, fields) or secrets.token_hex(8)
        generation = self._generation(kind, asked, request_id, connection)
        self._submit(generation)
        self.requests += 1
        self._count(request.path, request.method, 200)
        generation.begin()
        connection.on_gone = lambda: self._client_left(generation)
        if connection.gone:
            # Left while its bytes were still being read: uvicorn tells the handler at its first wait.
            self._client_left(generation)

    # What another engine's surface does differently (`fake/llamacpp.py`, `fake/sglang.py`).

    head_at_once = done_after_error = True  # see `Generation`
    usage_each = False
    full_inside = False  # a stream is refused inside an answer of status 200

    def full(self, inside: bool) -> Refused:
        """There is no room."""
        return busy(self.faults.busy_retry_after)

    def routes(self) -> dict[str, tuple[str, Handler]]:
        return ROUTES

    def parse(self, chat: bool, fields: dict[str, Any]) -> Asked:
        """What is asked for; raises `Refused`."""
        return parse(chat, fields, self.settings.model_name, self.settings.context_tokens, self.settings.part_tokens)

    def request_id(self, request: HttpRequest, fields: dict[str, Any]) -> str:
        """The caller's name for it, if it gave one."""
        return request.headers.get("x-request-id") or str(fields.get("request_id") or "")

    def _generation(self, kind: type[Generation], asked: Asked, request_id: str, connection: HttpConnection) -> Generation:
        return kind(
            id=f"{typed.PREFIXES.get(kind) or ('chatcmpl' if asked.chat else 'cmpl')}-{request_id}",
            asked=asked,
            connection=connection,
            model=self.settings.model_name,
            created=int(time.time()),
            request_id=request_id,
            submitted_s=self._clock.now_s(),
            choices=choices_of(asked, request_id, self.requests, self.settings.natural_tokens),
            fault=self.faults.next_fault(),
            on_ended=self._ended,
            head_at_once=self.head_at_once,
            done_after_error=self.done_after_error,
            usage_each=self.usage_each,
        )

    def _submit(self, generation: Generation) -> None:
        asked = generation.asked
        for execution, prompt in zip(generation.executions(), asked.prompts, strict=True):
            tokens = generation.choices[execution, 0].output_tokens
            names = block_names(prompt, self.model.block_tokens, asked.salt) if self.model.block_tokens > 1 else []
            outcome = self.model.submit(execution, len(prompt), tokens, asked.samples, names, generation.submitted_s)
            assert outcome == Submitted.ACCEPTED, "the queue limit and the context were checked above"
            self._generations[execution] = generation
        self._clock.poke()

    def _client_left(self, generation: Generation) -> bool:
        """This side closes first; the sequences leave at a later step boundary."""
        if self.settings.ignore_abort:
            return True
        generation.client_left()
        return False

    def _ended(self, generation: Generation) -> None:
        """Its client gets no further byte. Whatever of it is still inside is told to stop."""
        if not (self.settings.close_but_run and generation.connection.gone):
            for execution in generation.executions():
                self.model.abort(execution, self._clock.now_s())
        self._clock.poke()

    def _deliver(self, outputs: list[Output]) -> None:
        touched: dict[Generation, None] = {}
        for output in outputs:
            generation = self._generations.get(output.execution)
            if generation is None:
                continue  # made by a process that has died since
            touched[generation] = None
            if isinstance(output, Tokens):
                generation.more(output.execution, output.sample, output.tokens)
            elif isinstance(output, FirstToken) and generation.generates:
                self.counters.ttft_s.observe(output.at_s - generation.submitted_s)
            elif isinstance(output, Finished):
                self._finished(generation, output)
        for generation in touched:
            generation.flush()

    def _finished(self, generation: Generation, output: Finished) -> None:
        del self._generations[output.execution]
        # Aborted requests appear in no counter of the real engine.
        if output.reason != ENDED:
            return
        self.counters.e2e_s.observe(output.at_s - generation.submitted_s)
        for (execution, _), choice in generation.choices.items():
            if execution == output.execution:
                choice.ended = choice.ended or choice.reason
                self.counters.finished[choice.reason] += 1
                self.counters.prompt_tokens.observe(choice.prompt_tokens)
                self.counters.output_tokens.observe(choice.output_tokens)

    # What can be broken. `fake/control.py` offers the same over HTTP.

    def hang(self) -> None:
        """The core stands still; the API server answers, takes requests in, and closes the connections of clients who left."""
        self.model.pause(self._clock.now_s())
        self._clock.poke()

    def resume(self) -> None:
        self.model.resume(self._clock.now_s())
        self._clock.poke()

    def slow(self, factor: float) -> None:
        self.model.slow(factor)

    def fault(self, kind: str, after_tokens: int = 1, times: int = 1) -> None:
        """The next `times` answers go wrong: `error`, `break` or `garbage`, after so many tokens."""
        assert kind in ("error", "break", "garbage")
        self.faults.kind, self.faults.after_tokens, self.faults.times = kind, after_tokens, times

    def heal(self) -> None:
        self.faults = Faults()
        self.slow(1.0)
        self.resume()

    def drain(self) -> None:
        """SIGTERM with a time to finish: running work goes on, new work is answered 500, `/health` stays 200."""
        self.faults.draining = True

    def kill_core(self) -> None:
        """The core process dies: every answer ends with an error event and `[DONE]`, or 500; soon the server follows."""
        self.faults.core_dead = True
        self.model.restart(self._clock.now_s())
        lost, self._generations = list(dict.fromkeys(self._generations.values())), {}
        self._clock.poke()
        for generation in lost:
            generation.failed("EngineCore met an issue and has stopped.")
        self._keep(self._follow(self.counters))

    async def _follow(self, incarnation: Counters) -> None:
        await asyncio.sleep(CORE_DEATH_S)
        if self.counters is incarnation:
            self.die()

    def _keep(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def vanish(self) -> None:
        """SIGTERM without: the port is closed and the core gone, but open connections get neither a byte nor a FIN."""
        self._go_deaf()
        for connection in self.connections:
            connection.mute = True
        self._forget()

    def die(self) -> None:
        """The process is gone: connections are reset, the port refuses. One started by itself really ends."""
        self._fall()
        self.dead.set()

    def _fall(self) -> None:
        self._go_deaf()
        self._forget()
        for connection in list(self.connections):
            connection.reset()

    def _forget(self) -> None:
        self.model.restart(self._clock.now_s())
        self._generations = {}
        self._clock.poke()

    def restart(self, down_s: float = 0.0) -> None:
        """A new process on the same port: everything of the old one is gone, and it shows in `process_start_time_seconds`."""
        self._fall()
        self._keep(self._come_back(down_s))

    async def _come_back(self, down_s: float) -> None:
        await asyncio.sleep(down_s)
        self.faults = Faults()
        self.slow(1.0)
        self.dead.clear()
        self.counters = Counters(started_s=max(time.time(), self.counters.started_s + 0.01))
        await self._listen()


ROUTES: dict[str, tuple[str, Handler]] = {
    "/v1/chat/completions": ("POST", FakeEngine.chat),
    "/v1/completions": ("POST", FakeEngine.complete),
    "/v1/models": ("GET", pages.models),
    "/metrics": ("GET", pages.metrics),
    "/health": ("GET", pages.health),
    "/version": ("GET", pages.version),
    **typed.ROUTES,
    "/abort_requests": ("POST", pages.abort_requests),
}

if __name__ == "__main__":
    from headworks.testing.fake.command import main

    main()

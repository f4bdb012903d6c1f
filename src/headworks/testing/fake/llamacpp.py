"""The fake engine behind the surface of llama.cpp's server, as read and seen in b-of-2026-10.

What matters is when it notices that a client left: when it writes the next event of that stream, or when for one second no
request of anybody had a result, those for `/metrics` included. Then it cancels, and closes its side after that. A stream's head
comes with its first token; an error inside a stream is not followed by `[DONE]`; what does not fit waits, without a bound.
Each of several answers says what it alone used: in a stream with its end, and in one piece only the first one's is told.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headworks.sim.engine import Finished, Output
from headworks.testing.fake.asked import Asked, Refused, parse
from headworks.testing.fake.exposition import damaged
from headworks.testing.fake.generation import Generation
from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake_engine import ROUTES, FakeEngine, Handler

LOOK_S = 1.0
"""Without any result for so long, it looks whether its clients are there."""
BUILD = "b0-fake"


class FakeLlamaServer(FakeEngine):
    """See the module. `settings.engine.running_max` are its slots, `settings.context_tokens` those of one."""

    head_at_once = done_after_error = False
    usage_each = True
    _left: dict[Generation, None]
    _timer: asyncio.TimerHandle | None = None

    async def start(self) -> str:
        """See `FakeEngine.start`."""
        self._left = {}
        return await super().start()

    async def stop(self) -> None:
        """See `FakeEngine.stop`."""
        if self._timer is not None:
            self._timer.cancel()
        await super().stop()

    def routes(self) -> dict[str, tuple[str, Handler]]:
        """Some routes of the other are not there, and two more are."""
        return LLAMA_ROUTES

    def parse(self, chat: bool, fields: dict[str, Any]) -> Asked:
        """Without a limit an answer may take all that its slot has."""
        if fields.get("max_completion_tokens") is None and fields.get("max_tokens") is None:
            fields = {**fields, "max_tokens": self.settings.context_tokens}
        if int(fields.get("n") or 1) > self.model.running_max:
            raise _refused("n_cmpl cannot be greater than the number of slots, please increase -np", "invalid_request_error")
        try:
            return parse(chat, fields, self.settings.model_name, self.settings.context_tokens)
        except Refused as refused:
            if b'"input_tokens"' not in refused.body:
                raise
            text = f"a request is longer than the available context size ({self.settings.context_tokens} tokens)"
            raise _refused(text, "exceed_context_size_error", n_ctx=self.settings.context_tokens) from None

    # Who has left.

    def _client_left(self, generation: Generation) -> bool:
        """Nobody notices yet: this side stays open."""
        if not self.settings.ignore_abort and not generation.ended:
            self._left[generation] = None
            if self._timer is None:
                self._result()
        return True

    def _result(self) -> None:
        """Somebody's request had a result: the second begins anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look) if self._left else None

    def _look(self) -> None:
        self._timer = None
        for generation in list(self._left):
            self._notice(generation, by_writing=False)

    def _notice(self, generation: Generation, by_writing: bool) -> None:
        """Cancel first, then close: evidence rests on that order. Where no write has failed, the answer is ended before."""
        self._left.pop(generation, None)
        if not generation.ended:
            generation.client_left()
            if not by_writing:
                generation.cut_off()
        generation.connection.close()

    def _deliver(self, outputs: list[Output]) -> None:
        """An answer in one piece has one result, a stream one for each event."""
        told: dict[Generation, None] = {}
        for output in outputs:
            generation = self._generations.get(output.execution)
            if generation is not None and (generation.asked.stream or isinstance(output, Finished)):
                told[generation] = None
        super()._deliver(outputs)
        if told:
            self._result()
        for generation in list(self._left):
            if generation.ended or generation in told:
                self._notice(generation, by_writing=True)

    # Its own pages.

    def llama_models(self, request: HttpRequest, connection: HttpConnection) -> None:
        card = {"id": self.settings.model_name, "object": "model", "created": 0, "owned_by": "llamacpp"}
        card |= {"meta": {"n_ctx": self.settings.context_tokens, "n_ctx_train": self.settings.context_tokens}}
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))

    def props(self, request: HttpRequest, connection: HttpConnection) -> None:
        page = {"default_generation_settings": {"n_ctx": self.settings.context_tokens}, "build_info": BUILD}
        connection.respond(200, msgspec.json.encode(page | {"total_slots": self.model.running_max}))

    def llama_metrics(self, request: HttpRequest, connection: HttpConnection) -> None:
        gauges = self.gauges()
        series = {
            "prompt_tokens_total": ("counter", gauges.prompt_tokens),
            "tokens_predicted_total": ("counter", gauges.output_tokens),
            "n_decode_total": ("counter", gauges.iterations),
            "requests_processing": ("gauge", gauges.running),
            "requests_deferred": ("gauge", gauges.waiting),
        }
        lines = []
        for name, (kind, number) in series.items():
            lines += [f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {number}"]
        lines = damaged(lines, self.faults.dropped_series, self.faults.renamed_series)
        started = ("process-start-time-unix", str(int(self.counters.started_s * 1e6)))
        connection.respond(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4", started)
        self._result()


def _refused(message: str, kind: str, **more: int) -> Refused:
    refused = Refused(400, message, kind)
    refused.body = msgspec.json.encode({"error": {"code": 400, "message": message, "type": kind, **more}})
    return refused


LLAMA_ROUTES: dict[str, tuple[str, Handler]] = {
    **{path: ROUTES[path] for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")},
    **{path: ROUTES[path] for path in ("/v1/messages/count_tokens", "/v1/embeddings", "/health")},
    "/v1/models": ("GET", FakeLlamaServer.llama_models),
    "/props": ("GET", FakeLlamaServer.props),
    "/metrics": ("GET", FakeLlamaServer.llama_metrics),
}

"""The fake engine behind the surface of SGLang, as read in 0.5.23's source; nobody here has seen a real one.

Whoever leaves has his connection closed at once. A stream is then aborted in the background; an answer in one piece is looked
at every 50 of its tokens, or every 4 s while it has none. `POST /abort_request` stops whatever has an id that begins with the
one given, and says 200 to any; who still listens sees `finish_reason: abort`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headworks.sim.engine import Finished, Output
from headworks.testing.fake.asked import Refused, decode
from headworks.testing.fake.generation import Generation
from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake_engine import ROUTES, FakeEngine, Handler

QUEUED_LOOK_S = 4.0
RUNNING_LOOK_TOKENS = 50
VERSION = "0.5.23-fake"
FULL = "The request queue is full."


class FakeSglang(FakeEngine):
    """See the module."""

    full_inside = True
    _left: dict[Generation, int]
    """Answers in one piece whose client has left, and how many tokens they had when that was last looked at."""
    _named: set[Generation]
    """Told by name to stop, and not stopped yet."""

    async def start(self) -> str:
        """See `FakeEngine.start`."""
        self._left, self._named = {}, set()
        return await super().start()

    def routes(self) -> dict[str, tuple[str, Handler]]:
        """Some routes of the other are not there, and four more are."""
        return SGLANG_ROUTES

    def request_id(self, request: HttpRequest, fields: dict[str, Any]) -> str:
        """Headers count only where an environment variable says so."""
        return str(fields.get("rid") or "")

    def full(self, inside: bool) -> Refused:
        """OpenAI's shape in a stream, its fields at the top otherwise."""
        refused = Refused(503, FULL)
        if not inside:
            page = {"object": "error", "message": FULL, "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}
            refused.body = msgspec.json.encode(page)
        return refused

    def _client_left(self, generation: Generation) -> bool:
        if generation.asked.stream or self.settings.ignore_abort:
            return super()._client_left(generation)
        self._left[generation] = generation.made
        asyncio.get_running_loop().call_later(QUEUED_LOOK_S, self._look_at_queued, generation)
        return False

    def _look_at_queued(self, generation: Generation) -> None:
        if generation in self._left and not generation.made:
            self._notice(generation)

    def _notice(self, generation: Generation) -> None:
        del self._left[generation]
        generation.client_left()

    def _deliver(self, outputs: list[Output]) -> None:
        stopped = {self._generations.get(one.execution): None for one in outputs if isinstance(one, Finished)}
        super()._deliver(outputs)
        for generation in self._named & stopped.keys():
            if not any(execution in self._generations for execution in generation.executions()):
                self._named.discard(generation)
                generation.aborted()
        for generation, made in list(self._left.items()):
            if generation.ended or generation.made - made >= RUNNING_LOOK_TOKENS:
                self._notice(generation)

    def abort_request(self, request: HttpRequest, connection: HttpConnection) -> None:
        """By name, or everything. The answer is the same whoever is meant; who listens hears when it has stopped."""
        asked = decode(request.body, "application/json")
        if not (self.settings.ignore_abort or self.settings.close_but_run):
            for generation in dict.fromkeys(self._generations.values()):
                if asked.get("abort_all") or generation.request_id.startswith(str(asked.get("rid"))):
                    self._named.add(generation)
                    self._ended(generation)
        connection.respond(200, b"")

    # Its own pages.

    def server_info(self, request: HttpRequest, connection: HttpConnection) -> None:
        page = {"version": VERSION, "page_size": self.model.block_tokens, "max_total_num_tokens": self.model.kv_tokens}
        connection.respond(200, msgspec.json.encode(page | {"startup_time": self.counters.started_s}))

    def loads(self, request: HttpRequest, connection: HttpConnection) -> None:
        gauges = self.gauges()
        load = {
            "dp_rank": 0,
            "num_running_reqs": gauges.running,
            "num_waiting_reqs": gauges.waiting,
            "num_used_tokens": int(gauges.kv_used_ratio * self.model.kv_tokens),
            "max_total_num_tokens": self.model.kv_tokens,
            "token_usage": gauges.kv_used_ratio,
            "max_running_requests": self.model.running_max,
        }
        connection.respond(200, msgspec.json.encode({"version": VERSION, "loads": [load]}))


SGLANG_ROUTES: dict[str, tuple[str, Handler]] = {
    **{path: ROUTES[path] for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/health")},
    "/server_info": ("GET", FakeSglang.server_info),
    "/v1/loads": ("GET", FakeSglang.loads),
    "/abort_request": ("POST", FakeSglang.abort_request),
}

"""One request as Envoy shows it: one stream of its `ext_proc` protocol, from the head to the end of the answer.

    head, body         → our own edge, which reads, decides and perhaps refuses           (`wire.py`)
    carry              ← the gate lets it run: where it goes, and what it is sent with
    head, body, end    → the relay of its execution, as from a connection of ours         (`carried.py`)
    answer             ← what the client gets in place of the engine's, piece by piece

Until the engine's head is here an answer of ours ends the request (Envoy's immediate response), and is said whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headworks.engines.base import Listener, Upstream
from headworks.gateway.envoy import heads, words
from headworks.gateway.envoy.carried import Carried
from headworks.gateway.envoy.said import Body, Said
from headworks.gateway.envoy.wire import Wire
from headworks.gateway.http.answer import LAST_CHUNK
from headworks.gateway.http.limits import HttpError
from headworks.gateway.http.server import Server
from headworks.gateway.outlet import ANSWER_BYTES_MAX

SET_UP = "set up ext_proc with request_body_mode and response_body_mode FULL_DUPLEX_STREAMED, and both trailer modes SEND"
SENT_ONCE = "The engine did not take it, and a request that went through Envoy is not sent twice."
NOT_IN_SUBSET = "The gateway allows none of the engines that have room for it."


class Visit:
    """Takes what Envoy says of one request, and says what becomes of it (`engines.base.Carrier`, `wire.Taker`)."""

    def __init__(self, server: Server, said: Said, clock_s: Callable[[], float]) -> None:
        self._server = server
        self._said = said
        self._clock_s = clock_s
        self._wire: Wire | None = None
        self._carried: Carried | None = None
        self._asked: words.Fields = []
        self._subset: frozenset[str] | None = None
        self._request_trailers = self._answer_trailers = self._streams = False
        self._collected = b""
        """Of an answer that has to be said whole."""

    # what Envoy says

    def take(self, request: words.Message) -> None:
        """One message, in the order in which they come."""
        kind = request.WhichOneof("request")
        if kind == "request_headers":
            self._begin(request)
        elif kind == "request_body":
            self._body(request.request_body.body, request.request_body.end_of_stream)
        elif kind == "request_trailers":
            self._request_trailers = True
            self._body(b"", True)
        elif self._carried is None:
            self._said.fail("an answer to a request that was sent nowhere")
        elif kind == "response_headers":
            headers = request.response_headers
            self._carried.head(words.fields_of(headers), headers.end_of_stream)
        elif kind == "response_body":
            self._carried.body(request.response_body.body, request.response_body.end_of_stream)
        elif kind == "response_trailers":
            self._answer_trailers = True
            self._carried.end()

    def _begin(self, request: words.Message) -> None:
        if not words.streams_both_ways(request):
            self._said.fail(SET_UP)
            return
        headers = request.request_headers
        self._asked, self._subset = words.fields_of(headers), words.subset_of(request)
        try:
            head = heads.asked(self._asked, not headers.end_of_stream)
        except ValueError as error:
            self._said.fail(str(error))
            return
        head_only = (b":method", b"HEAD") in self._asked
        self._wire = Wire(self._server, heads.peer(self._asked), self, self._said.hold, head_only=head_only)
        self._said.slowed = self._wire.slow
        self._wire.show(head)

    def _body(self, payload: bytes, is_last: bool) -> None:
        framed = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
        if is_last:
            framed += LAST_CHUNK
        if framed and self._wire is not None:
            self._wire.show(framed)

    def gone(self) -> None:
        """The stream has ended: the client has gone, or everything has been said. First the client, so that nobody waits."""
        wire, self._wire = self._wire, None
        carried, self._carried = self._carried, None
        self._said.part()
        if wire is not None:
            wire.lose()
        if carried is not None:
            carried.lost()

    # what the gate decides

    def carry(
        self, address: tuple[str, int] | None, head: bytes, body: bytes, send_before_s: float, listener: Listener
    ) -> Upstream:
        """See `Carrier.carry`. The clock is read as the last thing before Envoy is told."""
        carried = Carried(listener, self._said.hold)
        endpoint = "" if address is None else _endpoint(address)
        if address is None:
            self._not_sent(listener, "connect")
        elif self._carried is not None:
            self._refuse(listener, SENT_ONCE)
        elif self._subset is not None and endpoint not in self._subset:
            self._refuse(listener, NOT_IN_SUBSET)
        elif self._clock_s() > send_before_s:
            self._not_sent(listener, "late")
        else:
            self._carried = carried
            fields = heads.sent(head)
            self._said.say(words.picked(endpoint, fields, heads.replaced(self._asked, fields)))
            for piece in words.request_body(body, self._request_trailers):
                self._said.say(piece)
        return carried

    def _not_sent(self, listener: Listener, reason: str) -> None:
        asyncio.get_running_loop().call_soon(listener.on_not_sent, reason)

    def _refuse(self, listener: Listener, why: str) -> None:
        """Nothing was sent, and nothing else will be tried: the client is told here, and counts as gone for the gate."""
        self._not_sent(listener, "fault")
        if self._wire is not None:
            self._wire.refuse(self._server.last_answer(HttpError(503, "no_replica", why)))

    # what the client gets

    def take_answer(self, status: int, fields: words.Fields, payload: bytes, is_last: bool) -> None:
        """See `wire.Taker`."""
        carried = self._carried
        if not self._streams and not self._collected and carried is not None and carried.can_stream:
            self._streams = True
            ours = [(b":status", b"%d" % status), *heads.own(fields)]
            self._said.say(words.answer_head(ours, heads.replaced(carried.fields, ours)))
        if self._streams:
            self._said.pass_on(Body(payload, is_last, self._answer_body))
            return
        self._collected += payload
        if is_last:
            self._said.say(words.answered(status, heads.own(fields), self._collected))
        elif len(self._collected) > ANSWER_BYTES_MAX:
            self._said.fail(f"an answer of more than {ANSWER_BYTES_MAX} bytes that cannot be streamed")

    def _answer_body(self, payload: bytes, is_last: bool) -> list[words.Message]:
        return list(words.answer_body(payload, is_last, self._answer_trailers))

    def broken(self) -> None:
        """See `wire.Taker`: Envoy resets what is not whole, so that no client takes what it has for an answer."""
        self._said.fail("the answer was broken off")


def _endpoint(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

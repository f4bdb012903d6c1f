"""Envoy's `ext_proc` service as an endpoint picker: who may run, and where, is decided by the gate of the public port.

One stream is one request (`visit.py`). It is served by an edge of its own, which listens nowhere and has the same handler: so
keys, classes, limits, dialects, refusals and the decision log are those of the public port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from headworks.gateway.envoy.messages import ProcessingRequest, ProcessingResponse
from headworks.gateway.envoy.said import Said
from headworks.gateway.envoy.visit import Visit
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.server import Handler, Server

NAME = "envoy.service.ext_proc.v3.ExternalProcessor"
AHEAD_MAX = 16
"""Messages that are read while they have to wait: behind them may stand that the stream has ended, and the client gone."""


class Picker:
    """Answers Envoy's questions about requests."""

    def __init__(self, handler: Handler, server: Callable[[Handler], Server], clock_s: Callable[[], float]) -> None:
        self._handler = handler
        self._clock_s = clock_s
        self._shown: Visit | None = None
        """Whose head or body the edge is being shown: it calls its handler then, and never later."""
        self.server = server(self._serve)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the gRPC server."""
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ProcessingRequest.FromString,
            response_serializer=ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(NAME, {"Process": process})

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        said = Said()
        visit = Visit(self.server, said, self._clock_s)
        ahead: deque[Any] = deque()
        said.released = lambda: asyncio.get_running_loop().call_soon(self._take_all, visit, said, ahead)
        saying = asyncio.create_task(said.say_all(context))
        try:
            while True:
                request = await context.read()
                if request is grpc.aio.EOF:
                    break
                ahead.append(request)
                self._take_all(visit, said, ahead)
                if len(ahead) >= AHEAD_MAX:
                    await said.may_read()
        finally:
            ahead.clear()
            visit.gone()
            saying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saying

    def _take_all(self, visit: Visit, said: Said, ahead: deque[Any]) -> None:
        """As far as nothing has it wait."""
        while ahead and not said.is_held:
            self._take(visit, said, ahead.popleft())

    def _take(self, visit: Visit, said: Said, request: Any) -> None:
        self._shown = visit
        try:
            visit.take(request)
        except Exception as fault:
            self.server.count_fault(fault)
            said.fail("a fault of ours")
        finally:
            self._shown = None

    def _serve(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        exchange.carrier = self._shown
        return self._handler(exchange)

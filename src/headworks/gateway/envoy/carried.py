"""One execution that Envoy takes to its engine in our place (`engines.base.Upstream`): what Envoy shows of it is heard here.

The end of the answer is seen as it is on a connection of ours: E1. That an engine's server has closed its side is not, so an
execution that is cut off is proved by counting or by another incarnation, as behind TLS (`engines/pool.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headworks.engines.base import Listener
from headworks.gateway.envoy.heads import Fields, engines
from headworks.gateway.relay import NOT_IMPLEMENTED

LOCAL_STATUS = 502
"""What an answer counts as that Envoy gave by itself, where its own status would speak of the request."""


class Carried:
    """From the moment Envoy has been told where it goes."""

    __slots__ = ("_hold", "_is_over", "_listener", "can_stream", "fields")

    def __init__(self, listener: Listener, hold: Callable[[bool], None]) -> None:
        self._listener = listener
        self._hold = hold
        """Have Envoy wait with what it shows next, or go on."""
        self._is_over = False
        self.can_stream = False
        """The engine's head is here and its body will come: a client's answer may go out in its place."""
        self.fields: Fields = []
        """Of the engine's head."""

    # what Envoy shows

    def head(self, fields: Fields, is_whole: bool) -> None:
        status, kept, by_engine = engines(fields)
        if not by_engine and (status < 500 or status == NOT_IMPLEMENTED):
            status = LOCAL_STATUS
        self.fields, self.can_stream = fields, not is_whole
        if not self._is_over:
            self._listener.on_head(status, kept, False)
        if is_whole:
            self.end()

    def body(self, payload: bytes, is_last: bool) -> None:
        if payload and not self._is_over:
            self._listener.on_body(None, payload)
        if is_last:
            self.end()

    def end(self) -> None:
        """All of the answer has come."""
        if not self._is_over:
            self._is_over = True
            self._listener.on_end()

    def lost(self) -> None:
        """Envoy has let go of it."""
        if not self._is_over:
            self._is_over = True
            self._listener.on_lost("Envoy gave it up before the end of its answer")

    # what the relay wants (`engines.base.Upstream`)

    def abort(self) -> None:
        """What the client is told ends the exchange, and with it Envoy ends what runs upstream."""
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().call_soon(self._listener.on_lost, "closed by us")

    def pause_reading(self) -> None:
        self._hold(True)

    def resume_reading(self) -> None:
        self._hold(False)

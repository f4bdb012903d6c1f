"""What is written in one turn of the loop goes out together, to clients and to engines (decision 55).

A write to a socket wakes whoever waits at its other end, and that is most of what it costs: a peer that has nothing to do
sleeps again between two writes that are forty microseconds apart, and not between two that follow each other. So what a turn
has to say is held until the turn is over, which for a request that comes alone is at once, or until so many writes are held.

Nothing here can overtake: what one connection says stays in order, and its end (`close`, `write_eof`) comes after what it said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

log = logging.getLogger("headworks.engines")

HELD_MAX = 32
"""So many writes wait for each other at most, so that the first is not kept waiting by a long turn."""
JOINED_BYTES_MAX = 65_536
"""What one connection says in a turn is joined up to here; beyond, copying it would cost more than another write."""


class Held(Protocol):
    """Something that is to be written."""

    def send(self) -> None:
        """Write it now. Whatever became of its connection meanwhile is this one's own affair."""
        ...


class Outbox:
    """What one gateway has to write in this turn of the loop."""

    __slots__ = ("_call_soon", "_has_sent", "_held", "_is_due")

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._is_due = False
        """The loop will see to it, if nobody does before."""
        self._has_sent = False
        """Something since the last turn ended, which the loop may not have written yet."""
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        """Of the loop it is used in. To ask which that is costs a system call."""

    def hold(self, held: Held) -> None:
        """To be sent when the turn is over, after what is held already."""
        self._held.append(held)
        if len(self._held) >= HELD_MAX:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._soon(self._turn_is_over)

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back when the loop has heard of all that came in this turn, and has written what was said in it.

        A loop may write only when it has called everything that is due: an answer that was read would wait until it is decided
        what follows from it, which is most of what a request costs.
        """
        self._soon(partial(self._then, callback))

    def _soon(self, callback: Callable[[], None]) -> None:
        if self._call_soon is None:
            self._call_soon = asyncio.get_running_loop().call_soon
        self._call_soon(callback)

    def _then(self, callback: Callable[[], None]) -> None:
        self.flush()
        if self._has_sent:
            self._has_sent = False
            self._soon(callback)
        else:
            callback()

    def begin_turn(self) -> None:
        """Send what is held. What is held from now on is sent by `end_turn`, and the loop need not see to it."""
        self.flush()
        self._is_due = True

    def end_turn(self) -> None:
        """Whoever began it has said all."""
        self._is_due = False
        self.flush()
        self._has_sent = False

    def _turn_is_over(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Send all that is held. A fault costs that write's connection, and nothing beside it."""
        while self._held:
            self._has_sent = True
            sent, self._held = self._held, []
            for held in sent:
                try:
                    held.send()
                except Exception as fault:
                    log.error("what was held could not be written", exc_info=fault)


class Outgoing:
    """A transport, as far as the port uses it, whose writes go through the outbox."""

    __slots__ = ("_held", "_outbox", "_transport")

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport = transport
        self._outbox = outbox
        self._held = b""

    def write(self, data: bytes) -> None:
        """In order, and not later than the end of this turn."""
        if not self._held:
            self._held = data
            self._outbox.hold(self)
        elif len(self._held) + len(data) <= JOINED_BYTES_MAX:
            self._held += data
        else:
            self.send()
            self._transport.write(data)

    def send(self) -> None:
        """See `Held.send`. A transport that is closing has lost whoever would read it."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            try:
                self._transport.write(held)
            except Exception:  # what came later would be read as if nothing had been lost before it
                self._transport.abort()
                raise

    def close(self) -> None:
        """Once all is written."""
        self.send()
        self._transport.close()

    def abort(self) -> None:
        """At once: what is not written yet is lost."""
        self._held = b""
        self._transport.abort()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """After what was said before."""
        self.send()
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        return len(self._held) + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high_bytes: int) -> None:
        self._transport.set_write_buffer_limits(high_bytes)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

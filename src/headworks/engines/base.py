"""What an engine adapter must do: run, stop, and say what can be proved about stopping.

`Engine.run` hands the bytes of one execution to one connection. Everything that then happens comes back through a
`Listener`, in callbacks on the event loop, so that a response can be relayed in the turn it arrives in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headworks.core.types import Capacity, ReplicaSample


class Passage:
    """A listener's leave to pass the next frames of a stream on without asking: what most of a stream needs, and no more.

    It holds for a read that is exactly one chunked frame with exactly one line of text and then `tail`. Any other read
    ends it on the connection's side, and the listener ends it by setting `left` to 0. A listener that wants to know how
    much has passed compares `left` with what it was.
    """

    __slots__ = ("left", "tail", "write")

    def __init__(self) -> None:
        self.left = 0
        """So many frames may still pass."""
        self.tail = b""
        """How such a frame ends, its line's end and the chunk's included."""
        self.write: Callable[[bytes], None] = _nowhere
        """Takes the frame as it came."""


def _nowhere(frame: bytes) -> None:
    raise RuntimeError("a passage that was never opened")


class Listener(Protocol):
    """Who is told what became of an execution. Calls come from the event loop, never from inside `run` or `abort`.

    Without `abort`, exactly one of `on_not_sent`, `on_end`, `on_lost` is called, once. After `abort` the answer may
    still go on for a while (`on_head`, `on_body`: what is known of its usage is worth having) and may reach `on_end`.
    When the engine's server then closes its side, `on_closed` is called: after `on_end`, or in the place of `on_lost`.
    """

    def on_not_sent(self, reason: str) -> None:
        """No byte was written and none will be: `late`, `connect`, `gone`."""
        ...

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        """The answer's head arrived, 1xx dropped, names in lower case, hop-by-hop names already removed."""
        ...

    def on_body(self, raw: bytes | None, payload: bytes) -> Passage | None:
        """Some of the body. `raw` is the same bytes still in whole chunked frames where that is so, else None.

        What is returned counts only where `raw` is one whole frame: leave to pass on the frames that follow.
        """
        ...

    def on_end(self) -> None:
        """The answer is complete by its own framing."""
        ...

    def on_lost(self, cause: str) -> None:
        """The connection broke, or what came is not HTTP, after at least one byte of the request was written."""
        ...

    def on_closed(self) -> None:
        """After `abort`: the engine's server has closed its side."""
        ...


class Upstream(Protocol):
    """One execution's way to its engine."""

    def abort(self) -> None:
        """Tell the engine to stop: half-close and keep reading, or read to the end where only that proves anything.

        Idempotent. Before the first byte was written it results in `on_not_sent("gone")`.
        """
        ...

    def pause_reading(self) -> None:
        """The client is slow: stop reading from this engine connection."""
        ...

    def resume_reading(self) -> None:
        """The client has caught up."""
        ...


class Carrier(Protocol):
    """Whoever carries an execution to its engine in our place: a proxy that asks us where a request may go."""

    def carry(
        self, address: tuple[str, int] | None, head: bytes, body: bytes, send_before_s: float, listener: Listener
    ) -> Upstream:
        """Have this request sent there, once; the listener hears what comes of it. None: nobody knows where now."""
        ...


class Engine(Protocol):
    """Run, stop, prove it stopped."""

    replica: str
    evidence: tuple[str, ...]
    """The levels this adapter can give, best first."""
    usage_each: bool
    """Of several answers to one request each says what it alone used, and in one piece only the first one's is told."""

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
        """Send one request on one connection, once. Reads the clock as the last thing before the write.

        `lines`: header lines beside ours, whole, each with its end: those of its trace. `carrier`: who sends it in our place.
        """
        ...

    def is_busy(self, status: int, payload: bytes) -> bool:
        """Whether this complete answer is the engine's way to say "no room, nothing was started" (K02)."""
        ...

    async def describe(self) -> Capacity:
        """What the engine can hold. Raises `EngineError` with a sentence that helps."""
        ...

    async def sample(self) -> ReplicaSample:
        """One look at its gauges and its progress clock. Raises `EngineError`."""
        ...

    async def close(self) -> None:
        """Close idle connections; executions that run keep theirs until they end."""
        ...


class EngineError(Exception):
    """The engine could not be asked, or its answer makes no sense. The text says what was asked and what came."""


class Unreachable(EngineError):
    """Not even a connection was made."""

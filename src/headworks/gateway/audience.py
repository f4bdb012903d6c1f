"""Everybody who waits for one answer: usually one client, several when a key is repeated while it runs (A6), or none.

The relay writes here and need not know who reads. A client that leaves is taken out; the last one's leaving stops
nothing by itself, since the relay reads on for evidence. The slowest reader decides when reading from the engine
pauses; one that stays slow too long is let go by the port, and with it the pause.

With `keep_bytes_max` the answer is kept, up to that size, so that a client that comes later gets all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headworks.gateway.error_shapes import error_event
from headworks.gateway.every_answer import KEPT_FROM_ENGINE, Headers, Ids, kept_headers
from headworks.gateway.http.answer import header_lines
from headworks.gateway.reader import Reader
from headworks.gateway.reply import OwnAnswer, failure

EngineHeaders = Sequence[tuple[bytes, bytes]]


_LINES_KEPT_MAX = 256
_LINES: dict[tuple[bytes, bytes], bytes] = {}
"""What passes of engines' heads, as lines: an engine says the same few things all day."""


def _line(pair: tuple[bytes, bytes]) -> bytes:
    """One that has not been seen."""
    if len(_LINES) >= _LINES_KEPT_MAX:
        _LINES.clear()
    line = _LINES[pair] = header_lines([pair])
    return line


def said(headers: EngineHeaders, wanted: bytes) -> bytes:
    """What an engine's head says under this name; nothing if it says nothing."""
    for name, value in headers:
        if name == wanted:
            return value
    return b""


class Client(Protocol):
    """The part of an HTTP exchange that is written to (`gateway/http/exchange.py`)."""

    @property
    def chunked(self) -> bool: ...
    def read_by(self, reader: Reader) -> None: ...
    def respond(self, status: int, headers: Headers | bytes, body: bytes) -> None: ...
    def start(self, status: int, headers: Headers | bytes, length: int | None) -> None: ...
    def write(self, payload: bytes) -> None: ...
    def write_raw(self, raw: bytes) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


class Source(Protocol):
    """Whoever writes to an audience now."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Memory(Protocol):
    """What kept answers share: asked before more is held, told when some is let go."""

    def take(self, size_bytes: int) -> bool: ...
    def give(self, size_bytes: int) -> None: ...


class _Unshared:
    """Nobody else keeps anything."""

    def take(self, size_bytes: int) -> bool:
        return True

    def give(self, size_bytes: int) -> None: ...


_UNSHARED = _Unshared()


class _Member:
    """One client in the audience."""

    __slots__ = ("audience", "begun", "client", "ended", "headers", "ids", "slow")

    def __init__(
        self,
        audience: Audience,
        client: Client,
        ids: Ids,
        headers: Headers | bytes,
        ended: Callable[[], None],
        begun: Callable[[], None] | None,
    ) -> None:
        self.audience = audience
        self.client = client
        self.ids = ids
        self.headers = headers
        self.ended = ended
        self.begun = begun
        self.slow = False

    def fall_behind(self) -> None:
        if not self.slow:
            self.slow = True
            self.audience.slowed(1)

    def catch_up(self) -> None:
        if self.slow:
            self.slow = False
            self.audience.slowed(-1)

    def leave(self) -> None:
        self.audience.left(self)


class Audience:
    """One answer on its way to its clients. It ends exactly once: whole, finished, or failed."""

    __slots__ = (
        "_engine_headers",
        "_keep_bytes_max",
        "_kept",
        "_kept_bytes",
        "_members",
        "_memory",
        "_slow",
        "_source",
        "_status",
        "_wall_s",
        "degraded",
        "ended",
        "failed",
        "started",
    )

    def __init__(self, wall_s: Callable[[], float], keep_bytes_max: int = 0, memory: Memory = _UNSHARED) -> None:
        self._wall_s = wall_s
        self._memory = memory
        self._keep_bytes_max = keep_bytes_max
        self._kept: list[bytes] | None = [] if keep_bytes_max else None
        self._kept_bytes = 0
        self._members: list[_Member] = []
        self._engine_headers: EngineHeaders = ()
        self._status = 0
        self._slow = 0
        self._source: Source | None = None
        self.started = False
        """A head has been sent, so an error can only be an event and a broken stream."""
        self.ended = False
        self.failed = False
        self.degraded = ""
        """What was made of the request that it answers, for whoever gets it later."""

    # who listens

    def join(
        self,
        client: Client,
        ids: Ids,
        headers: Headers | bytes,
        ended: Callable[[], None],
        begun: Callable[[], None] | None = None,
    ) -> bool:
        """Take a client in and give it what there was so far. False: that was not kept, so it cannot share this answer.

        `headers` are those of this client (`reply.own_headers` or `own_lines`): its ids, its wait, its tenant's limits.
        `ended` is called once when its answer is complete or has failed; a client that leaves before is not told so. `begun`
        is called when the head of a stream has gone out: from then on nothing else can answer it.
        """
        if self.failed or (self.started and self._kept is None):
            return False
        if self.started:
            client.start(self._status, self._head(headers), self._kept_bytes if self.ended else None)
            for piece in self._kept or ():
                client.write(piece)
        if self.ended:
            client.finish()
            ended()
            return True
        member = _Member(self, client, ids, headers, ended, begun)
        self._members.append(member)
        client.read_by(member)
        return True

    def tell(self, client: Client, headers: Headers | bytes) -> None:
        """Another attempt is to give the answer, of which other things are to be said: no head has been sent yet."""
        for member in self._members:
            if member.client is client:
                member.headers = headers

    def left(self, member: _Member) -> None:
        """For a member: its client is gone."""
        if member in self._members:
            self._members.remove(member)
            member.catch_up()

    @property
    def untouched(self) -> bool:
        """Nothing has been said to anybody yet, so another attempt may write here."""
        return not (self.started or self.ended)

    @property
    def empty(self) -> bool:
        """Nobody waits for this any more."""
        return not self._members

    @property
    def kept_bytes(self) -> int:
        """What is held in memory for those who come later."""
        return self._kept_bytes

    @property
    def whole(self) -> bool:
        """All of it is here, for whoever comes."""
        return self.ended and self._kept is not None

    def let_go(self) -> None:
        """Keep nothing any more: once it has begun, nobody else can get it."""
        self._kept = None
        self._memory.give(self._kept_bytes)
        self._kept_bytes = 0

    # flow

    def fed_by(self, source: Source) -> None:
        """Who writes here from now on, and is told when a reader is slow."""
        self._source = source
        if self._slow:
            source.pause()

    def slowed(self, change: int) -> None:
        """For members: one more, or one fewer, is behind."""
        before, self._slow = self._slow, self._slow + change
        if self._source is None:
            return
        if before == 0:
            self._source.pause()
        elif self._slow == 0:
            self._source.resume()

    # the answer

    def respond(self, status: int, engine_headers: EngineHeaders, body: bytes) -> None:
        """The whole answer at once."""
        if self.ended:
            return
        self.started = self.ended = True
        self._status, self._engine_headers = status, engine_headers
        if self._kept is not None:
            self._keep(body)
        for member in self._dismissed():
            member.client.respond(status, self._head(member.headers), body)
            member.ended()

    def start(self, status: int, engine_headers: EngineHeaders) -> None:
        """The head of a streamed answer."""
        if self.ended:
            return
        self.started = True
        self._status, self._engine_headers = status, engine_headers
        for member in tuple(self._members):  # who is cut off for being too slow leaves in the middle of this
            member.client.start(status, self._head(member.headers), None)
            if member.begun is not None:
                member.begun()
                member.begun = None

    def send(self, raw: bytes | None, payload: bytes) -> None:
        """Some of a streamed answer; `raw` is the same in whole chunked frames."""
        members = self._members if len(self._members) < 2 else tuple(self._members)  # a slow one may leave meanwhile
        for member in members:
            client = member.client
            if raw is not None and client.chunked:
                client.write_raw(raw)
            else:
                client.write(payload)
        if self._kept is not None and not self.ended:
            self._keep(payload)

    def straight(self) -> Callable[[bytes], None] | None:
        """Where whole chunked frames may go without passing here, until the flow is paused or the answer ends.

        Only if there is nothing to do for them here: one client, which reads them as they are, and nothing is kept.
        """
        if len(self._members) != 1 or self._kept is not None or self._slow or self.ended:
            return None
        client = self._members[0].client
        return client.write_raw if client.chunked else None

    def finish(self) -> None:
        """The clean end of a streamed answer."""
        if self.ended:
            return
        self.ended = True
        if self._kept is not None:
            self._kept = [b"".join(self._kept)]
        for member in self._dismissed():
            member.client.finish()
            member.ended()

    def fail(
        self,
        code: str,
        *,
        value: float | None = None,
        limit: float | None = None,
        unit: str = "",
        subject: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        """The answer cannot be had: an error with a status if nothing was sent, else an error event and a broken stream."""
        if self.ended:
            return
        self.ended = self.failed = True
        self.let_go()
        for member in self._dismissed():
            answer = failure(
                code,
                member.ids,
                wall_s=self._wall_s(),
                value=value,
                limit=limit,
                unit=unit,
                subject=subject,
                retry_after_s=retry_after_s,
            )
            self._tell(member, answer)
            member.ended()

    def _tell(self, member: _Member, answer: OwnAnswer) -> None:
        if self.started:
            member.client.write(error_event(member.ids.shape, answer.body))
            member.client.abort()
        else:
            member.client.respond(*answer)

    def _dismissed(self) -> list[_Member]:
        """Everybody who was here, for the last time: nothing further is written to them, and none holds a pause."""
        members, self._members = self._members, []
        if self._slow:
            for member in members:
                member.catch_up()
        self._source = None
        return members

    def _head(self, headers: Headers | bytes) -> Headers | bytes:
        """What of the engine's head a client gets to see, and then its own."""
        if not isinstance(headers, bytes):
            return [*kept_headers(self._engine_headers), *headers]
        kept = b""
        for pair in self._engine_headers:
            if pair[0] in KEPT_FROM_ENGINE:
                kept = kept + (_LINES.get(pair) or _line(pair))
        return kept + headers

    def _keep(self, payload: bytes) -> None:
        if self._kept is None:
            return
        size_bytes = len(payload)
        if self._kept_bytes + size_bytes > self._keep_bytes_max or not self._memory.take(size_bytes):
            self.let_go()
        else:
            self._kept_bytes += size_bytes
            self._kept.append(payload)

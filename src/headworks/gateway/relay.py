"""Between one engine connection and the clients of one request: bytes pass on, and what they say about the end is told.

The relay listens to one execution (`engines/base.py`) and writes to an `Outlet`. It parses only what decides
something: how many events, each choice's finish reason, the usage. It goes on reading when nobody listens any more,
because only the end of the answer proves that it ended.

What the runner is told comes through a `Follower`, in the loop turn in which it became known; exactly one of `not_sent`,
`busy`, `stopped` and `lost` comes, once. Before the first event nothing is sent to the client, so until then an error
is an ordinary answer with its own status.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.types import Usage
from headworks.engines.base import Passage, Upstream
from headworks.gateway.audience import EngineHeaders, said
from headworks.gateway.dialects.typed_stream import Speech, TypedStream, read_whole
from headworks.gateway.endings import length_ending
from headworks.gateway.engine_words import Supposed, WireUsage
from headworks.gateway.event_rate import EventRate
from headworks.gateway.event_stream import NO_PROOF, EventStream, error_status, read_answer
from headworks.gateway.follower import Follower
from headworks.gateway.outlet import ANSWER_BYTES_MAX, Outlet
from headworks.gateway.reply import hint_s

ANSWERED = "the engine answered"
NOT_IMPLEMENTED = 501
"""It has no such thing for this model: nothing was begun, and nothing failed."""
HIDDEN_STATUSES = frozenset({401, 403, 407})
"""The engine's opinion of our own credentials is nothing a client could act on."""


class Relay:
    """Listener of one execution."""

    # fmt: off
    __slots__ = (
        "_aborted", "_at_once", "_audience", "_body", "_clock_s", "_events", "_follower", "_headers",
        "_include_usage_asked", "_is_busy", "_last_s", "_more", "_opening", "_over", "_prompt_tokens", "_rate",
        "_report_at_events", "_report_every_events", "_samples", "_seen", "_size_bytes", "_speech", "_started_s", "_status",
        "_stream", "_told", "_upstream", "_watch_tokens", "paused",
    )
    # fmt: on

    def __init__(
        self,
        audience: Outlet,
        follower: Follower,
        stream: bool,
        samples: int,
        include_usage_asked: bool,
        rate: EventRate,
        is_busy: Callable[[int, bytes], bool],
        clock_s: Callable[[], float],
        report_every_events: int = 64,
        watch_tokens: int = 0,
        prompt_tokens: int = 0,
        speech: Speech | None = None,
    ) -> None:
        self._audience = audience
        self._follower = follower
        self._stream = stream
        self._samples = samples
        self._include_usage_asked = include_usage_asked
        self._rate = rate
        self._is_busy = is_busy
        self._clock_s = clock_s
        self._report_every_events = self._report_at_events = report_every_events
        self._watch_tokens = 0
        self._prompt_tokens = prompt_tokens
        self._speech = speech
        """How the answer is read, where that is not as chat completions are."""
        self._opening = b""
        """What came with the first token, and the prompt as estimated: an answer that is ended here is ended in such words."""
        self._upstream: Upstream | None = None
        self._status = 0
        self._headers: EngineHeaders = ()
        self._events: EventStream | None = None
        self._body = b""
        self._more: list[bytes] | None = None
        """A whole answer: what came first, and what came after that, if it came in pieces."""
        self._size_bytes = 0
        self._seen = False
        self._at_once = False
        """The first byte came with the last, and is told with it."""
        self._told = False
        self._over = False
        self._aborted = False
        self._started_s = self._last_s = clock_s()
        self.paused = False
        if watch_tokens:
            self.watch(watch_tokens)
        audience.fed_by(self)

    # what the runner does

    def attach(self, upstream: Upstream) -> None:
        """The way back to the engine, which exists only once `Engine.run` has returned."""
        self._upstream = upstream
        if self._aborted:
            upstream.abort()
        elif self.paused:
            upstream.pause_reading()

    def abort(
        self, code: str, *, value: float | None = None, limit: float | None = None, unit: str = "s", back_s: float | None = None
    ) -> None:
        """Stop it upstream and go on reading. `code` is what clients are told, and when to be back; empty: there are none."""
        self._aborted = True
        self._close_passage()
        if self._upstream is not None:
            self._upstream.abort()
        if code:
            self._audience.fail(code, value=value, limit=limit, unit=unit, retry_after_s=back_s)
        self.resume()

    def cut_short(self) -> None:
        """Stop it upstream and go on reading; for its clients it ends as any answer that has reached its limit."""
        self._aborted = True
        self._close_passage()
        if self._upstream is not None:
            self._upstream.abort()
        ending = b""
        if isinstance(self._events, TypedStream):
            ending = self._events.ending(self._prompt_tokens, self.output_tokens)
        elif self._events is not None:
            usage = (self._prompt_tokens, self.output_tokens) if self._include_usage_asked else None
            ending = length_ending(self._opening, self._samples, self._events.finished, usage)
        if ending:
            self._audience.send(None, ending)
            self._audience.finish()
        else:
            self._audience.fail("upstream_lost")  # it came in no form that we know how to end

    def watch(self, output_tokens: int) -> None:
        """Report as soon as so many tokens are counted, and then at the usual distances again."""
        self._close_passage()
        self._watch_tokens = output_tokens
        self._plan_report(self._events.token_events if self._events is not None else 0)

    def _plan_report(self, events: int) -> None:
        self._report_at_events = events + self._report_every_events
        if self._watch_tokens:
            self._report_at_events = min(self._report_at_events, max(self._rate.events(self._watch_tokens), events + 1))

    @property
    def output_tokens(self) -> int:
        """Counted so far."""
        self._count_passed()
        return self._rate.tokens(self._events.token_events) if self._events is not None else 0

    @property
    def last_s(self) -> float:
        """When the engine was last heard, for the idle limit; while `paused` the silence is ours.

        Frames that pass by themselves are not timed but counted: of those this is when it was first asked after them.
        """
        self._count_passed()
        return self._last_s

    # what the engine connection says

    def on_not_sent(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._follower.not_sent(reason)
        self._finish()

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        self._status = status
        self._headers = headers
        if self._stream and 200 <= status < 300 and said(headers, b"content-type").lstrip().startswith(b"text/event-stream"):
            if self._speech is None:
                self._events = EventStream(self._samples, self._include_usage_asked)
            else:
                self._events = self._speech.stream()

    def on_body(self, raw: bytes | None, payload: bytes) -> Passage | None:
        events = self._events
        if events is None:
            self._hold(payload)
            return None
        self._close_passage()
        self._last_s = self._clock_s()
        passed = events.take(payload)
        if not self._seen:
            if events.token_events and not self._told:
                self._opening = passed
                self._begin()
            elif events.error is None or self._told:
                return None  # nothing of the answer yet: a comment that keeps the connection alive
        if passed and self._seen:
            self._audience.send(raw if passed is payload else None, passed)
        if events.token_events >= self._report_at_events:
            tokens = self._rate.tokens(events.token_events)
            if tokens >= self._watch_tokens:
                self._watch_tokens = 0
            self._plan_report(events.token_events)
            self._follower.progressed(tokens)
        if events.done or events.error:
            self._check_end(events)
        elif raw is not None and passed is payload:
            return self._open_passage(raw, events)
        return None

    def on_end(self) -> None:
        events = self._events
        if events is not None:
            self._end_stream(events)
        elif not self._told:
            body = self._body if self._more is None else b"".join([self._body, *self._more])
            if 200 <= self._status < 300:
                self._end_success(body)
            else:
                self._end_refused(body)
        self._finish()

    def on_lost(self, cause: str) -> None:
        events = self._events
        if self._told and events is not None and events.done and events.complete:
            self._audience.finish()  # it was whole; only the connection's own end is missing
        else:
            self._lost(cause, broke=True)
        self._finish()

    def on_closed(self) -> None:
        self._report()
        self._follower.closed()
        self._finish()

    def _finish(self) -> None:
        self._upstream = None
        if not self._over:
            self._over = True
            self._follower.over()

    # streams

    def _open_passage(self, raw: bytes, events: EventStream) -> Passage | None:
        """Let frames like this one pass by themselves, up to the one that is to be reported."""
        left = self._report_at_events - events.token_events - 1
        write = self._audience.straight() if left > 0 else None
        return None if write is None else events.let_pass(raw, left, write)

    def _count_passed(self) -> None:
        if self._events is not None and self._events.count_passed():
            self._last_s = self._clock_s()

    def _close_passage(self) -> None:
        self._count_passed()
        if self._events is not None:
            self._events.let_none_pass()

    def _end_stream(self, events: EventStream) -> None:
        self._close_passage()
        if self._told and not self._seen:
            return  # it was given up before its first token
        rest = events.close()
        if events.token_events and not self._seen:
            self._begin()
        if rest and self._seen:
            self._audience.send(None, rest)
        if events.complete:
            self._stopped(events.first_reason, events.usage, events)
            self._audience.finish()
        else:
            self._lost("the stream ended before every choice had finished")

    def _begin(self) -> None:
        """The first token. An error in its place leaves the client without a head, so it gets a proper status."""
        self._seen = True
        self._audience.start(self._status, self._headers)
        self._follower.first_byte()

    def _check_end(self, events: EventStream) -> None:
        """`[DONE]`, or an error. The first settles at once if all choices have finished: the client may leave right now."""
        if self._told:
            return
        if events.error is None:
            if events.complete:
                self._stopped(events.first_reason, events.usage, events)
            return
        if not self._seen and self._is_busy(error_status(events.error), events.error):
            self._told = True
            self._follower.busy(hint_s(self._headers))
            return
        self._lost("an error event: " + events.error[:200].decode("utf-8", "replace"))

    # whole answers

    def _hold(self, payload: bytes) -> None:
        self._last_s = self._clock_s()
        if self._told:
            return
        if not self._seen and 200 <= self._status < 300:
            self._seen = True
            self._at_once = not self._stream and said(self._headers, b"content-length") == b"%d" % len(payload)
            if not self._at_once:
                self._follower.first_byte()
        self._size_bytes += len(payload)
        if self._size_bytes > ANSWER_BYTES_MAX:
            self._body, self._more = b"", None
            self._lost(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        elif not self._body:
            self._body = payload
        elif self._more is None:
            self._more = [payload]
        else:
            self._more.append(payload)

    def _end_refused(self, body: bytes) -> None:
        """A complete answer that is no success."""
        status = self._status
        if self._is_busy(status, body):
            self._told = True
            self._follower.busy(hint_s(self._headers))
        elif status >= 500 and status != NOT_IMPLEMENTED:
            self._lost(f"{ANSWERED} {status}")
        elif status < 400 or status in HIDDEN_STATUSES:
            self._audience.fail("upstream_lost")
            self._stopped("failed", WireUsage(), None, failed=True)
        else:
            self._audience.respond(status, self._headers, body)
            self._stopped("failed", WireUsage(), None, failed=True)

    def _end_success(self, body: bytes) -> None:
        """A complete answer that was not a stream of events."""
        reason, usage = read_answer(body, self._samples) if self._speech is None else read_whole(self._speech, body)
        if reason in NO_PROOF:
            self._lost(NO_PROOF[reason])
            return
        self._audience.respond(self._status, self._headers, body)
        self._stopped(reason, usage, None)

    # what is told, once

    def _stopped(self, end: str, usage: WireUsage | None, events: EventStream | None, failed: bool = False) -> None:
        if self._told:
            return
        self._told = True
        engine_s = self._last_s - self._started_s
        if usage is None:
            self._follower.stopped(Usage(0, 0, self.output_tokens, engine_s, end, False), failed, self._at_once)
            return
        if events is not None and usage.completion_tokens:
            self._rate.learn(events.token_events, usage.completion_tokens)
        details = usage.prompt_tokens_details
        cached = details.cached_tokens or 0 if details is not None else 0
        told = Usage(usage.prompt_tokens, cached, usage.completion_tokens, engine_s, end, not isinstance(usage, Supposed))
        self._follower.stopped(told, failed, self._at_once)

    def _lost(self, cause: str, broke: bool = False) -> None:
        """It may still run: the gate decides what must be proved. Its clients get no more of it in any case.

        Where the connection `broke`, who has had nothing of it may get another attempt's answer: the engine said nothing.
        """
        if self._told:
            return
        self._told = True
        if self._at_once:
            self._follower.first_byte()
        self._report()
        unheard = broke and self._audience.untouched
        self._follower.lost(cause, unheard)
        if not unheard:
            self._audience.fail("upstream_lost")

    def _report(self) -> None:
        """The last count of something that will not say its usage."""
        if self._events is not None and self._events.token_events:
            self._follower.progressed(self.output_tokens)

    # flow

    def pause(self) -> None:
        """For the audience: somebody in it cannot follow."""
        if self.paused or self._aborted:
            return
        self.paused = True
        self._close_passage()
        if self._upstream is not None:
            self._upstream.pause_reading()
        self._follower.slow(True)

    def resume(self) -> None:
        """For the audience: everybody can follow again."""
        if not self.paused:
            return
        self.paused = False
        self._last_s = self._clock_s()
        if self._upstream is not None:
            self._upstream.resume_reading()
        self._follower.slow(False)

"""One relay with its client, its follower, and an engine played by the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headworks.core.types import Usage
from headworks.gateway.audience import Audience
from headworks.gateway.event_rate import EventRate
from headworks.gateway.every_answer import Headers, Ids, own_headers
from headworks.gateway.reader import Reader
from headworks.gateway.relay import Relay

SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-request-id", b"theirs")]
JSON = [(b"content-type", b"application/json")]
IDS = Ids(b"req-1", b"key-1")


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def token(text: str = "x", index: int = 0, finish: str | None = None) -> bytes:
    return event(id="c", choices=[{"index": index, "delta": {"content": text}, "finish_reason": finish}])


USAGE = event(id="c", choices=[], usage={"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
ERROR = event(error={"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500})
WHOLE = [token(""), token("a"), token("b", finish="stop"), USAGE, DONE]


class FakeClient:
    """An HTTP exchange that keeps what it is told, and refuses what the real one refuses."""

    def __init__(self, chunked: bool = True) -> None:
        self._chunks = chunked
        self.chunked = False
        self.status = 0
        self.headers: Headers = []
        self.length: int | None = None
        self.body = b""
        self.raw_writes = 0
        self.end = ""
        self.pause: Callable[[], None] = lambda: None
        self.resume: Callable[[], None] = lambda: None
        self.leave: Callable[[], None] = lambda: None

    def read_by(self, reader: Reader) -> None:
        self.pause, self.resume, self.leave = reader.fall_behind, reader.catch_up, reader.leave

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        assert not self.status, "answered twice"
        self.status, self.headers, self.body, self.end = status, headers, body, "whole"

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        assert not self.status, "answered twice"
        self.status, self.headers, self.length = status, headers, length
        self.chunked = self._chunks and length is None

    def write(self, payload: bytes) -> None:
        assert self.status and not self.end, "written outside an answer"
        self.body += payload

    def write_raw(self, raw: bytes) -> None:
        assert self.chunked, "raw chunks in an answer that is not chunked"
        self.raw_writes += 1
        while raw:
            size, _, rest = raw.partition(b"\r\n")
            self.write(rest[: int(size, 16)])
            raw = rest[int(size, 16) + 2 :]

    def finish(self) -> None:
        assert self.status and not self.end, "finished twice"
        self.end = "finished"

    def abort(self) -> None:
        assert not self.end, "ended twice"
        self.end = "broken"

    def json(self) -> Any:
        return json.loads(self.body)


class FakeUpstream:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Heard:
    """A follower that keeps what it hears."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.usage: Usage | None = None
        self.tokens = 0

    def first_byte(self) -> None:
        self.said.append("first byte")

    def progressed(self, output_tokens: int) -> None:
        self.tokens = output_tokens

    def slow(self, paused: bool) -> None:
        self.said.append("slow" if paused else "caught up")

    def stopped(self, usage: Usage, failed: bool, at_once: bool = False) -> None:
        self.usage = usage
        if at_once:
            self.said.append("first byte")
        self.said.append("stopped failed" if failed else "stopped")

    def lost(self, cause: str, unheard: bool) -> None:
        self.said.append("lost unheard" if unheard else "lost")

    def not_sent(self, reason: str) -> None:
        self.said.append(f"not sent {reason}")

    def busy(self, retry_after_s: float) -> None:
        self.said.append(f"busy for {retry_after_s:g} s" if retry_after_s else "busy")

    def closed(self) -> None:
        self.said.append("closed")

    def over(self) -> None:
        self.said.append("over")


def says_busy(status: int, body: bytes) -> bool:
    return status == 503 and b"busy" in body


class Scene:
    """One request with its client, its relay, and an engine played by the test."""

    def __init__(
        self,
        *,
        stream: bool = True,
        samples: int = 1,
        asked: bool = False,
        chunked: bool = True,
        keep: int = 0,
        every: int = 64,
        is_busy: Callable[[int, bytes], bool] = says_busy,
    ) -> None:
        self.is_busy = is_busy
        self.now_s = 100.0
        self.client = FakeClient(chunked)
        self.heard = Heard()
        self.upstream = FakeUpstream()
        self.rate = EventRate()
        self.ended = 0
        self.audience = Audience(lambda: 0.0, keep)
        assert self.join(self.client)
        self.relay = self.attempt(stream=stream, samples=samples, asked=asked, every=every)

    def join(self, client: FakeClient, ids: Ids = IDS) -> bool:
        return self.audience.join(client, ids, own_headers(ids, 0.0), self.has_ended)

    def has_ended(self) -> None:
        self.ended += 1

    def attempt(self, *, stream: bool, samples: int, asked: bool, every: int) -> Relay:
        relay = Relay(
            self.audience,
            self.heard,
            stream=stream,
            samples=samples,
            include_usage_asked=asked,
            rate=self.rate,
            is_busy=self.is_busy,
            clock_s=lambda: self.now_s,
            report_every_events=every,
        )
        relay.attach(self.upstream)
        return relay

    def plays(self, *payloads: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] = SSE, end: bool = True) -> Scene:
        self.relay.on_head(status, headers, True)
        for payload in payloads:
            self.relay.on_body(b"%x\r\n%b\r\n" % (len(payload), payload), payload)
        if end:
            self.relay.on_end()
        return self

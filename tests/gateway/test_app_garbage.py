"""Engines that answer nonsense, and whose metrics lie, die or are renamed, behind the whole gateway (K16, K33)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from app_scene import PATIENT, SIZES, Scene, chat, first_event, rest_of_stream, run, scene
from http_port import Answer

from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine

ANSWER_S_MAX = 8.0
EXPECTED = {(200, ""), (299, ""), (502, "upstream_lost")}
HTML = b"<!doctype html><title>502 Bad Gateway</title><center>nginx</center>"
TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
END = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]%b}'
LINE = b"x" * 10_000_001


def head(kind: str, status: str = "200 OK", more: str = "Connection: close") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}\r\n\r\n".encode()


def page(body: bytes, status: str = "200 OK", kind: str = "text/html") -> bytes:
    return head(kind, status, f"Content-Length: {len(body)}") + body


def stream(*events: bytes) -> bytes:
    """Ends with its connection."""
    return head("text/event-stream") + b"".join(events)


def usage(text: bytes) -> bytes:
    return b'data: {"id":"c","choices":[],"usage":%b}\n\n' % text


NEGATIVE = b'{"prompt_tokens":-5,"completion_tokens":-7,"total_tokens":-12}'
USAGES = {
    "negative": NEGATIVE,
    "far too much": b'{"prompt_tokens":9223372036854775807,"completion_tokens":99999999999}',
    "no number": b'{"prompt_tokens":"many","completion_tokens":null}',
    "a list": b"[1,2]",
    "a fraction": b'{"prompt_tokens":1.5,"completion_tokens":1e300}',
    "not a number": b'{"prompt_tokens":NaN,"completion_tokens":1}',
    "nothing": b"null",
}
STREAMS = {
    "HTML": page(HTML),
    "HTML, 502": page(HTML, "502 Bad Gateway"),
    "HTML, 500": page(HTML, "500 Internal Server Error"),
    "nothing at all": b"",
    "an empty 200": page(b""),
    "an empty stream": stream(),
    "only [DONE]": stream(DONE),
    "no [DONE]": stream(TOKEN, END),
    "broken JSON": stream(TOKEN, b'data: {"id":"c","choices":[{"ind\n\n', END, DONE),
    "no JSON": stream(b"data: <html>\n\n", b"data: \xff\xfe\n\n", DONE),
    "other JSON": stream(b"data: 7\n\n", b"data: []\n\n", b'data: {"choices":{"a":1}}\n\n', DONE),
    "no SSE": stream(b"x" * 5_000),
    "comments only": stream(b": ping\n\n" * 500),
    "no empty lines": stream(TOKEN.strip() + b"\n", TOKEN.strip() + b"\n", DONE.strip()),
    "cut in an event": stream(TOKEN, TOKEN[:30]),
    "deep": stream(b"data: " + b"[" * 50_000 + b"\n\n", DONE),
    "choices that are none": stream(b'data: {"choices":[{"index":-1}]}\n\n', b'data: {"choices":[{"index":99999}]}\n\n', DONE),
    "a line of 10 MB": stream(TOKEN, b"data: ", LINE),
    "a line of 10 MB first": stream(LINE),
    "a chunk that is none": head("text/event-stream", more="Transfer-Encoding: chunked") + b"zz\r\n" + TOKEN,
    "shorter than it says": head("text/event-stream", more="Content-Length: 99999") + TOKEN,
    "status 299": page(b"{}", "299 Whatever", "application/json"),
    "status 101": head("text/plain", "101 Switching Protocols", "Upgrade: x") + b"hello",
    "a redirect": head("text/plain", "302 Found", "Location: http://169.254.169.254/\r\nContent-Length: 0"),
    **{f"usage: {name}": stream(TOKEN, END, usage(text), DONE) for name, text in USAGES.items()},
}
WHOLES = {
    **{name: answer for name, answer in STREAMS.items() if "text/event-stream" not in answer[:200].decode("latin-1")},
    "half of it": page((WHOLE % b"")[:50], kind="application/json"),
    "shorter than it says": head("application/json", more="Content-Length: 99999") + WHOLE % b"",
    "other JSON": page(b"[7]", kind="application/json"),
    "no choices": page(b'{"choices":null}', kind="application/json"),
    "deep": page(b"[" * 50_000, kind="application/json"),
    "a line of 10 MB": head("application/json") + LINE,
    "bytes": page(b"\xff\x00" * 500, kind="application/octet-stream"),
    **{f"usage: {name}": page(WHOLE % (b',"usage":' + text), kind="application/json") for name, text in USAGES.items()},
}


class Babbler(FakeEngine):
    """Says what it is told to, whatever is asked; its metrics are true until they are told to be otherwise."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(engine=SIZES, context_tokens=2048))
        self.says: bytes | None = None
        self.page: bytes | None = None

    def handle(self, request: HttpRequest, connection: HttpConnection) -> None:
        if request.path == "/metrics" and self.page is not None:
            connection.respond(200, self.page, "text/plain")
        elif request.method == "POST" and self.says is not None:
            connection._write(self.says)
            connection.close()
        else:
            super().handle(request, connection)


async def asked(s: Scene, *fields: str, **more: Any) -> Answer | None:
    """What the client gets within its time; None: an answer had begun and was broken off."""
    try:
        return await asyncio.wait_for(s.ask(chat(*fields, **more)), ANSWER_S_MAX)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@pytest.mark.parametrize(("is_stream", "answers"), [(True, STREAMS), (False, WHOLES)], ids=["stream", "whole"])
def test_K16_whatever_an_engine_says_its_client_is_answered_and_everything_is_released(
    is_stream: bool, answers: dict[str, bytes]
) -> None:
    async def steps() -> None:
        engine = Babbler()
        async with scene(engine, classes=PATIENT, ledger={"lease_s": 1}, pool={"breaker": {"requests_min": 10_000}}) as s:
            for number, (name, engine.says) in enumerate(answers.items()):
                answer = await asked(s, f"Idempotency-Key: k{number}", stream=is_stream, tokens=9)
                assert answer is None or (answer.status, answer.code if answer.status == 502 else "") in EXPECTED, (
                    name,
                    answer,
                )
                assert answer is None or b"<title>" not in answer.body, name
            engine.says = None
            await s.until(lambda: not s.charged(), 15.0)
            for number, name in enumerate(answers):
                outcome = s.outcome(f"k{number}")
                assert outcome["outcome"] in ("completed", "failed"), name
                assert outcome["evidence"] in ("E1", "E3a", "E3b"), name
                used = outcome["usage"] or {"prompt_tokens": 0, "output_tokens": 0}
                assert 0 <= used["prompt_tokens"] < 100 and 0 <= used["output_tokens"] <= 9, (name, used)
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps(), within_s=60.0)


LIES = {
    "nothing": b"",
    "HTML": HTML,
    "bytes": b"\xff\x00" * 9_000,
    "a line of 10 MB": LINE,
    "NaN": b"nan",
    "infinite": b"+Inf",
    "negative": b"-7",
    "far too much": b"1e300",
    "a fraction": b"0.5",
    "no number": b"many",
}
NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "iteration_tokens_total_count",
)


def lying(value: bytes) -> bytes:
    """A page whose every series says this."""
    if len(value) > 10 or not value:
        return value
    lines = [b'vllm:%b{engine="0",model_name="tiny"} %b\n' % (name.encode(), value) for name in NAMES]
    return b"".join([*lines, b"process_start_time_seconds %b\n" % value])


@pytest.mark.parametrize("name", LIES)
def test_K33_metrics_that_lie_stop_no_answer_and_free_nothing_that_runs(name: str) -> None:
    async def steps() -> None:
        engine = Babbler()
        async with scene(engine, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=60))
            await first_event(client)
            engine.page = lying(LIES[name])
            assert (await rest_of_stream(client))[1], "who had begun is served to the end"
            client.close()
            await s.until(lambda: not s.charged())
            assert s.outcome("k1")["evidence"] == "E1"
            refused = await asked(s, tokens=5)
            assert refused is not None and refused.status in (200, 429, 503), refused
            shown = s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]
            assert all(value is None or 0 <= value < 1e12 for value in (shown["running"], shown["kv_used_ratio"])), shown
            engine.page = None
            await s.until(lambda: s.app.obstacles() == [], 10.0)
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())

"""The relay on the real public port: what a client on a socket sees (E1). The other relay tests use a client of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from http_port import LOOPS, Answer, port, post, run
from relay_scene import DONE, ERROR, IDS, SSE, WHOLE, FakeUpstream, Heard, token

from headworks.gateway.audience import Audience
from headworks.gateway.event_rate import EventRate
from headworks.gateway.every_answer import own_headers
from headworks.gateway.http import Exchange
from headworks.gateway.relay import Relay


class PlayedEngine:
    """A handler that relays what an engine is said to send, and what became of it."""

    def __init__(self, *payloads: bytes, lost: bool = False) -> None:
        self.payloads = payloads
        self.lost = lost
        self.heard = Heard()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.read_body()
        ended = asyncio.Event()
        audience = Audience(lambda: 0.0)
        assert audience.join(exchange, IDS, own_headers(IDS, 0.0), ended.set)
        relay = Relay(
            audience,
            self.heard,
            stream=True,
            samples=1,
            include_usage_asked=False,
            rate=EventRate(),
            is_busy=lambda status, body: False,
            clock_s=lambda: 0.0,
        )
        relay.attach(FakeUpstream())
        relay.on_head(200, SSE, True)
        for payload in self.payloads:
            relay.on_body(b"%x\r\n%b\r\n" % (len(payload), payload), payload)
            await asyncio.sleep(0)
        relay.on_lost("reset") if self.lost else relay.on_end()
        await ended.wait()


async def answered(engine: Callable[[Exchange], object]) -> Answer:
    async with port(engine) as edge:
        answer = await edge.ask(post())
        assert not edge.faults
        return answer


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_E1_stream_reaches_the_socket_whole(loop: str) -> None:
    async def steps() -> None:
        engine = PlayedEngine(*WHOLE)
        answer = await answered(engine)
        assert (answer.status, answer.body) == (200, b"".join([*WHOLE[:3], DONE]))
        assert answer.fields["x-request-id"] == "req-1"
        assert answer.fields["content-type"] == "text/event-stream; charset=utf-8"
        assert engine.heard.said == ["first byte", "stopped", "over"]

    run(loop, steps())


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("lost", [True, False])
def test_E1_broken_stream_is_never_a_clean_end(loop: str, lost: bool) -> None:
    async def steps() -> None:
        payloads = (token("a"), token("b")) if lost else (token("a"), ERROR, DONE)
        with pytest.raises(asyncio.IncompleteReadError):
            await answered(PlayedEngine(*payloads, lost=lost))

    run(loop, steps())

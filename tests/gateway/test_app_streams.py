"""What a stream holds once it has begun: nothing of what was asked, and nothing of how that was decided."""

from __future__ import annotations

import asyncio

import pytest
from app_scene import LOOPS, chat, first_event, run, scene

from headworks.engines.pool import CONNECTIONS_MAX
from headworks.gateway.http.limits import EdgeLimits

PROMPT = "one two three " * 300


def asked(stream: bool) -> bytes:
    return chat(messages=[{"role": "user", "content": PROMPT}], tokens=200, stream=stream)


@pytest.mark.parametrize("loop", LOOPS)
def test_E1_a_stream_that_has_begun_holds_neither_its_prompt_nor_its_verdicts(loop: str) -> None:
    async def steps() -> None:
        async with scene() as made:
            client = await made.connect()
            client.send(asked(stream=True))
            await first_event(client)
            app = made.app
            [call] = app.runner._calls.values()  # type: ignore[attr-defined]
            [life] = app.gate._desk.runs.values()  # type: ignore[attr-defined]
            await made.until(lambda: life.first_byte_s is not None)
            assert call.exchange.body_ready is None
            assert (call.parsed.forwarded, call.parsed.raws) == (b"", {})
            assert (life.decision, life.rows) == (None, [])
            assert life.decided is life.work
            client.close()

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
def test_B15_an_answer_in_one_piece_keeps_what_a_second_try_would_send(loop: str) -> None:
    async def steps() -> None:
        async with scene() as made:
            client = await made.connect()
            client.send(asked(stream=False))
            await made.until(lambda: made.inside() > 0)
            [call] = made.app.runner._calls.values()  # type: ignore[attr-defined]
            assert PROMPT.encode() in call.parsed.forwarded
            await asyncio.wait_for(client.answer(), 10)
            client.close()

    run(loop, steps())


def test_E1_an_engine_has_as_many_connections_as_clients_may_have() -> None:
    assert EdgeLimits().connections_max <= CONNECTIONS_MAX

"""What a request made is freed by counting when it has ended: nothing of it waits for the collector, or for a time to pass."""

from __future__ import annotations

import gc

from app_scene import Scene, chat, completion, run, scene

from headworks.core.life import Life
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.relay import Relay

ONE_OF_EACH = (chat(tokens=4), chat(tokens=4, stream=True), completion(tokens=4), chat(tokens=4, model="none"))
PATIENT = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}, "timeouts": {"gateway_s": 50}}}


async def ask_all(s: Scene) -> None:
    client = await s.connect()
    for payload in ONE_OF_EACH:
        client.send(payload)
        await client.answer()
    client.close()
    await s.settled()


def test_H3_nothing_of_a_request_that_has_ended_is_left() -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT) as s:
            await ask_all(s)  # whatever is made once
            gc.collect()
            gc.disable()
            try:
                await ask_all(s)
                left = [type(one).__name__ for one in gc.get_objects() if isinstance(one, Life | Exchange | Relay)]
            finally:
                gc.enable()
            assert left == []

    run("uvloop", steps())

"""Replicas that come, drain and go under load, by a reload and over the admin port, on four fake engines (issue 6, D4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, LOOPS, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene

from headworks.config import build
from headworks.testing.fake_engine import FakeEngine

both_loops = pytest.mark.parametrize("loop", LOOPS)
NAMES = ("a", "b", "c", "d")
WITH_KEY = {"admin_key": "env:ADMIN"}
AUTH = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}
CALLERS = 12


def named(*engines: tuple[str, FakeEngine], drained: str = "") -> dict[str, Any]:
    """A pool section with these replicas, by name."""
    return {
        "replicas": [
            {"name": name, "url": engine.url, "engine": "vllm", "drain": name in drained.split()} for name, engine in engines
        ]
    }


async def change(s: Scene, *engines: tuple[str, FakeEngine], drained: str = "") -> None:
    s.texts["pools"]["llama"] |= named(*engines, drained=drained)
    await s.reload(s.text())


def shown(s: Scene) -> dict[str, str]:
    return {name: one["state"] for name, one in s.app.snapshot()["pools"]["llama"]["replicas"].items()}


class Load:
    """Clients that ask one after the other until they are told to stop."""

    def __init__(self, s: Scene) -> None:
        self._s = s
        self.statuses: Counter[int] = Counter()
        self._on = True
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(CALLERS)]

    async def _ask(self) -> None:
        while self._on:
            self.statuses[(await self._s.ask(chat(tokens=24))).status] += 1

    async def some(self, answers: int) -> None:
        """Let so many more be answered."""
        more = sum(self.statuses.values()) + answers
        await self._s.until(lambda: sum(self.statuses.values()) >= more, 10.0)

    async def end(self) -> None:
        self._on = False
        await asyncio.gather(*self._tasks)


@both_loops
def test_D4_replicas_are_added_drained_and_withdrawn_by_reloads_under_load_and_nobody_notices(loop: str) -> None:
    async def steps() -> None:
        engines = [fake_engine() for _ in NAMES]
        pairs = list(zip(NAMES, engines, strict=True))
        async with scene(*engines) as s:
            await change(s, *pairs[:2])
            await s.until(lambda: shown(s) == {"llama/a": "ready", "llama/b": "ready"})
            load = Load(s)
            await load.some(40)
            assert engines[2].requests == 0
            await change(s, *pairs)
            await s.until(lambda: shown(s)["llama/c"] == shown(s)["llama/d"] == "ready")
            await load.some(60)
            assert min(engine.requests for engine in engines) > 0, "those that were added get work"
            await change(s, *pairs, drained="a")
            assert shown(s)["llama/a"] == "draining"
            text = s.app.registry.render().decode()
            assert 'headworks_replica_state{replica="llama/a",state="draining"} 1.0' in text
            await s.until(lambda: not engines[0].held())
            before = engines[0].requests
            await load.some(40)
            assert engines[0].requests == before, "a drained one gets nothing new"
            await change(s, *pairs[2:])
            await s.until(lambda: set(shown(s)) == {"llama/c", "llama/d"})
            await load.some(40)
            assert set(s.app.engines) == {"llama/c", "llama/d"}
            await change(s, *pairs[1:])
            await s.until(lambda: shown(s)["llama/b"] == "ready")
            before = engines[1].requests
            await load.some(60)
            assert engines[1].requests > before, "one that was forgotten may come back"
            await load.end()
            assert set(load.statuses) == {200}

    run(loop, steps())


async def tell(s: Scene, verb: str, replica: str, reason: str = "a test") -> httpx.Response:
    host, port = s.app.admin_address[:2]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, headers=AUTH) as client:
        return await client.post(f"/admin/replicas/{verb}", json={"replica": replica, "reason": reason})


def test_D4_an_operator_drains_and_withdraws_one_over_the_admin_port_and_a_reload_does_not_undo_it() -> None:
    async def steps() -> None:
        engines = [fake_engine() for _ in range(2)]
        async with scene(*engines, server=WITH_KEY) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=600))
            await first_event(client)
            (busy,) = [number for number, engine in enumerate(engines) if engine.held()]
            name = f"llama/{busy}"
            drained = (await tell(s, "drain", name)).json()
            assert (drained["state"], drained["told"], drained["empty"]) == ("draining", "drain", False)
            await s.reload(s.text())
            assert shown(s)[name] == "draining"
            assert [(await s.ask(chat())).status for _ in range(3)] == [200] * 3
            assert (engines[busy].requests, engines[1 - busy].requests) == (1, 3)
            assert (await rest_of_stream(client))[1], "what it had ends as it should"
            resumed = (await tell(s, "resume", name)).json()
            assert (resumed["state"], resumed["told"]) == ("ready", "")
            assert (await tell(s, "withdraw", name)).json()["withdrawn"]
            await s.until(lambda: set(shown(s)) == {f"llama/{1 - busy}"})
            await s.reload(s.text())
            assert set(s.app.engines) == {f"llama/{1 - busy}"}
            last = await tell(s, "withdraw", f"llama/{1 - busy}")
            assert (last.status_code, "last replica of its pool" in last.json()["error"]["message"]) == (409, True)
            await tell(s, "resume", name)
            await s.until(lambda: shown(s) == {"llama/0": "ready", "llama/1": "ready"})
            listed = (await s.admin("/admin/replicas", **AUTH)).json()["replicas"]
            assert {one: (row["state"], row["requests"]) for one, row in listed.items()} == {
                "llama/0": ("ready", 0),
                "llama/1": ("ready", 0),
            }
            client.close()

    run("uvloop", steps())


def test_D4_what_cannot_be_told_says_why_and_without_an_admin_key_nothing_can() -> None:
    async def steps() -> None:
        async with scene(fake_engine(), server=WITH_KEY) as s:
            answers = [await tell(s, "drain", "llama/7"), await tell(s, "resume", "llama/0"), await tell(s, "drain", "x", "")]
            assert [(one.status_code, one.json()["error"]["message"]) for one in answers] == [
                (409, "The configuration names no replica llama/7. It names llama/0."),
                (409, "llama/0 was not told to drain."),
                (400, "The body must have replica and reason, both texts of one line."),
            ]
        async with scene(fake_engine()) as s:
            assert (await tell(s, "drain", "llama/0")).status_code == 403

    run("uvloop", steps())


def test_D4_a_name_keeps_its_address_for_as_long_as_it_is_known() -> None:
    async def steps() -> None:
        engines = [fake_engine() for _ in range(3)]
        async with scene(*engines) as s:
            await change(s, ("a", engines[0]), ("b", engines[1]))
            s.texts["pools"]["llama"] |= named(("b", engines[2]), ("c", engines[1]))
            fixed = s.app.fixed(build.settings(s.text(), ENVIRONMENT))
            assert fixed == ["the address of llama/b (a replica with another address wants another name)"]
            await change(s, ("a", engines[0]))
            await s.until(lambda: set(shown(s)) == {"llama/a"})
            await change(s, ("a", engines[0]), ("b", engines[2]))
            await s.until(lambda: shown(s) == {"llama/a": "ready", "llama/b": "ready"})

    run("uvloop", steps())


def test_B9_what_a_withdrawn_engine_still_runs_stays_charged_until_it_is_proved() -> None:
    async def steps() -> None:
        engines = [fake_engine() for _ in range(2)]
        async with scene(*engines) as s:
            await change(s, ("a", engines[0]), ("b", engines[1]))
            await s.until(lambda: shown(s) == {"llama/a": "ready", "llama/b": "ready"})
            client = await s.connect()
            client.send(chat(stream=True, tokens=1500))
            await first_event(client)
            busy = next(number for number, engine in enumerate(engines) if engine.held())
            engines[busy].hang()
            other = 1 - busy
            await change(s, ("ab"[other], engines[other]))
            client.close()
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["states"].get("leaving") == 1)
            await asyncio.sleep(0.5)  # nothing is to happen meanwhile
            assert len(s.charged()) == 1
            assert set(shown(s)) == {"llama/a", "llama/b"}
            assert (await s.ask(chat())).status == 200
            engines[busy].resume()
            await s.until(lambda: not s.charged() and len(shown(s)) == 1, 10.0)

    run("uvloop", steps())

"""The whole gateway on a shared ledger: one, and two that share a pool, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene
from http_port import Answer

from headworks.config import build
from headworks.gateway.app import App
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
DOMAINS = count(1)
BEARER = {"Authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


def shared(server: servers.Server) -> dict[str, Any]:
    return {"url": server.url, "domain": f"d{next(DOMAINS)}", "lease_s": 5}


def statuses(answers: Sequence[Answer]) -> list[tuple[int, str]]:
    """With the code of a refusal: it says what went wrong."""
    return [(one.status, "" if one.status == 200 else one.json()["error"]["code"]) for one in answers]


async def beside(first: Scene) -> Scene:
    """A second gateway with the same file."""
    config = first.text()
    other = Scene(App(build.policy(config, number=1), build.settings(config, ENVIRONMENT)), first.engines, first.texts)
    await other.app.start()
    await other.until(lambda: other.app.obstacles() == [])
    return other


@pytest.mark.parametrize("loop", LOOPS)
def test_A11_requests_run_on_a_shared_ledger_and_leave_nothing_held(loop: str, server: servers.Server) -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, ledger=shared(server)) as front:
            for _ in range(3):
                answers = await asyncio.gather(*(front.ask(chat(tokens=2 + number % 3)) for number in range(8)))
                assert statuses(answers) == [(200, "")] * 8
            shown = (await front.admin("/admin/ledger")).json()
            assert shown["guarantee"].startswith("Exact across all gateways of its domain")
            assert (shown["charged"], shown["tokens"]) == (0, {"llama": 0})

    run(loop, steps())


def test_A3_two_gateways_do_not_admit_more_than_the_pool_holds(server: servers.Server) -> None:
    """Room for 4 sequences: 6 answers asked of each of two gateways; never more than 4 are inside the engine."""
    most = 0

    async def steps() -> None:
        nonlocal most
        engine = fake_engine()
        async with scene(engine, pool={"active_requests_max": 4}, classes=PATIENT, ledger=shared(server)) as first:
            second = await beside(first)
            asked = [one.ask(chat(tokens=6)) for _ in range(6) for one in (first, second)]
            answers = asyncio.ensure_future(asyncio.gather(*asked))
            while not answers.done():
                most = max(most, len(engine.held()))
                await asyncio.sleep(0.001)
            assert statuses(answers.result()) == [(200, "")] * 12
            await second.app.stop()

    run("asyncio", steps())
    assert most == 4


def test_A11_audit_and_release_look_at_the_live_store(server: servers.Server) -> None:
    """A stream is held: shown with its tokens by another gateway; a spoilt counter is found; release ends it there."""

    async def steps() -> None:
        ledger = shared(server)
        async with scene(classes=PATIENT, ledger=ledger, server={"admin_key": "env:ADMIN"}) as first:
            second = await beside(first)
            client = await first.connect()
            client.send(chat(tokens=1500, stream=True))
            await first_event(client)
            while (shown := (await second.admin("/admin/ledger", **BEARER)).json())["records"][0]["state"] != "RUNNING":
                assert shown["records"][0]["state"] == "RESERVED"  # its start rides with the next call
            (record,) = shown["records"]
            assert shown["tokens"]["llama"] > 300
            assert (await second.admin("/admin/ledger/audit", **BEARER)).json() == {"holds": True, "differences": []}
            counters = f"headworks:{{{ledger['domain']}}}:counters"
            server.ask("RENAME", counters, "aside")
            found = (await second.admin("/admin/ledger/audit", **BEARER)).json()["differences"]
            assert f"pool:llama tokens: no counter for {shown['tokens']['llama']}" in found
            server.ask("RENAME", "aside", counters)
            said = await second.app.ledger.declare("release", record["execution"], "of this test", "server.admin_key")
            assert said == {"outcome": "ok", "state": "FAILED", "evidence": "operator"}
            assert (await second.admin("/admin/ledger", **BEARER)).json()["tokens"] == {"llama": 0}
            await rest_of_stream(client)
            client.close()
            await second.app.stop()

    run("asyncio", steps())

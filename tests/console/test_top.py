"""`headworks top`: its figures from two looks, and its screen on a whole gateway before a fake engine."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from app_scene import Scene, chat, first_event, run, scene
from textual.widgets import DataTable, Static

from headworks.cli.main import run as headworks
from headworks.tools.top_figures import Figures, StateError, figures, state_of
from headworks.tools.top_screen import LookFailed, Top

TENANTS = {
    "acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 5_000},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "active_requests_max": 1},
}
REFUSES = {"interactive": {"on_tenant_full": "refuse"}}


def test_F9_what_is_no_state_of_ours_is_said() -> None:
    with pytest.raises(StateError, match="is it a headworks of this version"):
        state_of({"pools": 3})


async def busy(s: Scene) -> list[Any]:
    """One answer of each tenant runs, and one request of batchco was refused."""
    clients = []
    for key in ("ACME_KEY", "BATCHCO_KEY"):
        client = await s.connect()
        client.send(chat(key=key, stream=True, tokens=1_500))
        assert (await first_event(client)).status == 200
        clients.append(client)
    assert (await s.ask(chat("X-Request-Id: turned-away", key="BATCHCO_KEY"))).status == 429
    return clients


def admin(s: Scene) -> list[str]:
    host, port = s.app.admin_address[:2]
    return ["--admin", f"http://{host}:{port}"]


def test_F9_top_once_gives_scripts_everything_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            clients = await busy(s)
            assert await asyncio.to_thread(headworks, ["top", "--once", "--json", "--every", "0.1", *admin(s)]) == 0
            found = json.loads(capsys.readouterr().out)
            (pool,) = found["pools"]
            assert (pool["pool"], pool["running"], pool["engines_ready"], pool["waiting"]) == ("llama", 2, 1, 0)
            assert pool["reserved_tokens"] == s.held("pool:llama") > 300
            assert pool["orphans"] == 0
            (engine,) = found["engines"]
            assert (engine["state"], engine["breaker"], engine["running"]) == ("ready", "closed", 2)
            assert engine["evidence"] == ["E1", "E3a", "E3b", "E4"]
            assert found["refusals"] == [{"reason": "tenant_capacity_exceeded", "per_s": 0.0, "total": 1}]
            tenants = {row["tenant"]: row for row in found["tenants"]}
            assert tenants["acme"]["tokens_max"] == 5_000
            assert (tenants["batchco"]["running"], tenants["batchco"]["running_max"]) == (1, 1)
            assert tenants["batchco"]["refused_per_s"] == 0.0  # it was before the first look
            last = found["decisions"][-1]
            assert (last["tenant"], last["outcome"], last["reason"]) == ("batchco", "refuse", "tenant_capacity_exceeded")
            assert await asyncio.to_thread(headworks, ["top", "--once", "--every", "0.1", *admin(s)]) == 0
            text = capsys.readouterr().out
            assert "gateway enforces" in text and "Last decisions" in text and "refused: tenant_capacity_exceeded" in text
            for client in clients:
                client.close()

    run("uvloop", steps())


def test_F12_what_cannot_be_written_down_is_said_until_it_can_and_what_was_lost_for_good(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    async def troubles(s: Scene) -> list[str]:
        return list((await s.admin("/admin/snapshot")).json()["troubles"])

    async def steps() -> None:
        async with scene(log={"rotate_bytes": 1}) as s:  # so that each writing opens a file
            directory = str(s.texts["log"]["decisions"])
            assert await troubles(s) == []
            os.rename(directory, f"{directory}.away")
            assert (await s.ask(chat())).status == 200
            await s.settled()
            await s.until(lambda: len(s.app.standing.troubles()) == 2)
            log, usage = await troubles(s)
            assert log.startswith("The decision log cannot be written: ") and "No such file" in log
            assert usage.startswith("The usage journal cannot be written: ") and usage.endswith("since the start: 0.")
            assert await asyncio.to_thread(headworks, ["top", "--once", "--every", "0.1", *admin(s)]) == 0
            assert "The decision log cannot be written: [Errno 2]" in capsys.readouterr().out
            os.rename(f"{directory}.away", directory)
            assert (await s.ask(chat())).status == 200
            await s.until(lambda: len(s.app.standing.troubles()) == 1 and "is written again" in s.app.standing.troubles()[0])
            assert s.app.log is not None and s.app.log.dropped > 0
            assert await troubles(s) == [f"The decision log is written again. Lines lost since the start: {s.app.log.dropped}."]

    run("uvloop", steps())
    assert caplog.text.count("the decision log cannot be written") == 1


def cells(top: Top, name: str) -> list[list[str]]:
    table = top.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


def test_F9_the_screen_follows_a_gateway_and_says_when_it_cannot() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            clients = await busy(s)
            failing = False
            loop = asyncio.get_running_loop()

            def look() -> Figures:
                if failing:
                    raise LookFailed("it cannot be asked now")
                answer = asyncio.run_coroutine_threadsafe(s.admin("/admin/snapshot"), loop).result(5)
                return figures(state_of(answer.json()))

            top = Top(look, 0.2)
            async with top.run_test(size=(140, 50)) as pilot:
                await s.until(lambda: top.looks >= 2)
                (pool,) = cells(top, "pools")
                assert pool[0] == "llama" and pool[1].startswith("2 of ")
                assert [row[0] for row in cells(top, "tenants")] == ["acme", "batchco"]
                assert cells(top, "tenants")[1][2] == "1 of 1"
                assert cells(top, "tenants")[1][-2:] == ["–", "–"], "nothing of it has ended"
                assert [row[0] for row in cells(top, "classes")] == ["interactive", "batch", "bulk"]
                assert cells(top, "decisions")[0][4] == "refused: tenant_capacity_exceeded"
                assert "gateway enforces" in str(top.query_one("#heading", Static).render())
                failing = True
                await s.until(lambda: bool(top.query_one("#trouble").display))
                assert "it cannot be asked now" in str(top.query_one("#trouble", Static).render())
                assert cells(top, "pools")[0][0] == "llama"  # what was seen last stays
                failing = False
                await s.until(lambda: not top.query_one("#trouble").display)
                await pilot.press("p")
                await s.until(lambda: not any(worker.is_running for worker in top.workers))
                seen = top.looks
                top._begin_look()  # as its timer does
                assert not any(worker.is_running for worker in top.workers)
                assert top.looks == seen
                await pilot.press("q")
            for client in clients:
                client.close()

    run("asyncio", steps())


def test_F9_a_gateway_that_is_not_there_could_not_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert headworks(["top", "--once", "--admin", "http://127.0.0.1:1"]) == 2
    assert "Is a gateway running?" in capsys.readouterr().err

"""`mode: observe` of one tenant and of one class, from the file to what clients are told (F3)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from app_scene import Scene, chat, first_event, rest_of_stream, run, scene

from headworks.cli.main import run as headworks

KEYS = {"acme": "env:ACME_KEY", "batchco": "env:BATCHCO_KEY"}
REFUSING = {"interactive": {"on_tenant_full": "refuse"}}


def tenants(**more: dict[str, Any]) -> dict[str, Any]:
    return {name: {"keys": [key], "active_requests_max": 1, **more.get(name, {})} for name, key in KEYS.items()}


async def beside_a_stream(s: Scene, key: str, *fields: str) -> int:
    """The status of a second request of a tenant whose one place is taken."""
    client = await s.connect()
    client.send(chat(*fields, key=key, stream=True, tokens=100))
    await first_event(client)
    second = await s.ask(chat(*fields, key=key, tokens=4))
    assert (await rest_of_stream(client))[1]
    client.close()
    return second.status


def test_F3_one_tenant_is_observed_and_the_other_is_held_to_its_limit_until_a_reload() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(acme={"mode": "observe"}), classes=REFUSING) as s:
            assert await beside_a_stream(s, "ACME_KEY") == 200
            assert await beside_a_stream(s, "BATCHCO_KEY") == 429
            would = [one for one in s.everything("decision") if one["outcome"] == "refuse" and one["key"][0] == "acme"]
            assert [one["reason"] for one in would] == ["tenant_capacity_exceeded"]
            await s.reload(s.text(tenants={"acme": {"mode": "enforce"}, "batchco": {"mode": "observe"}}))
            assert await beside_a_stream(s, "ACME_KEY") == 429
            assert await beside_a_stream(s, "BATCHCO_KEY") == 200

    run("uvloop", steps())


def test_F3_one_class_is_observed_and_the_same_tenant_is_refused_in_another() -> None:
    async def steps() -> None:
        classes = REFUSING | {"bulk": {"mode": "observe", "on_tenant_full": "refuse"}}
        async with scene(tenants=tenants(), classes=classes) as s:
            assert await beside_a_stream(s, "ACME_KEY", "Headworks-Class: bulk") == 200
            assert await beside_a_stream(s, "ACME_KEY") == 429

    run("uvloop", steps())


def test_F3_what_was_observed_proposes_limits_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight at once where two places are stated: six would not have run, and the log says what they would have needed."""

    async def steps() -> None:
        eight = tenants(acme={"mode": "observe", "active_requests_max": 2})
        async with scene(tenants=eight, classes=REFUSING) as s:
            answers = await asyncio.gather(*(s.ask(chat(key="ACME_KEY", tokens=60)) for _ in range(8)))
            assert {one.status for one in answers} == {200}
            await s.settled()
            assert s.app.log is not None
            s.app.log.flush()
            directory = str(s.app.log.directory)
            status = await asyncio.to_thread(headworks, ["observe", "--log", directory, "--refuse", "0", "--json"])
            found = json.loads(capsys.readouterr().out)
            assert status == 0, found["tried"]
            (acme,) = found["decided"]
            assert (acme["arrivals"], acme["refused"], acme["ran_all_the_same"]) == (8, 6, 6)
            (places,) = [one for one in found["proposals"] if one["key"] == "tenants.acme.active_requests_max"]
            assert (places["value"], places["would_refuse"]) == (8, 0)
            assert found["tried"]["tenants"]["acme"]["refused"] == 0
            assert await asyncio.to_thread(headworks, ["observe", "--log", directory, "--refuse", "0"]) == 0
            assert "active_requests_max: 8" in capsys.readouterr().out

    run("uvloop", steps())

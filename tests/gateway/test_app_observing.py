"""`mode: observe` of one tenant and of one class, from the file to what clients are told (F3)."""

from __future__ import annotations

from typing import Any

from app_scene import Scene, chat, first_event, rest_of_stream, run, scene

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

"""Keys of a shared ledger at two gateways' public ports, and `headworks keys` on its store (H2, A11)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_scene import ENVIRONMENT, Scene, chat, run, scene
from key_scene import TENANTS, added, at_admin, bearer
from test_app_shared import beside

from headworks.cli.main import run as headworks
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
PEPPER = "a-pepper-that-both-gateways-are-given"
SEEN_S = 2.0
"""A look a second, and what a busy machine adds."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.Server]:
    monkeypatch.setitem(ENVIRONMENT, "KEYS_SECRET", PEPPER)
    with servers.single() as one:
        yield one


def sections(server: servers.Server) -> dict[str, Any]:
    ledger = {"url": server.url, "keys_secret": "env:KEYS_SECRET", "lease_s": 5}
    return {"ledger": ledger, "tenants": TENANTS, "server": {"admin_key": "env:ADMIN"}}


async def told(s: Scene, key: str) -> tuple[int, str]:
    answer = await s.ask(chat(bearer(key), tokens=2))
    return answer.status, "" if answer.status == 200 else answer.code


async def until_told(s: Scene, key: str, *wanted: tuple[int, str]) -> None:
    """Within the stated bound."""
    end_s = time.monotonic() + SEEN_S
    while await told(s, key) not in wanted:
        assert time.monotonic() < end_s, f"{await told(s, key)} is not {wanted}"
        await asyncio.sleep(0.2)  # a failed key more often would be too many of them


async def revoked(s: Scene, name: str) -> None:
    assert (await at_admin(s, "POST", f"/admin/keys/{name}/revoke", {})).status_code == 200


def test_H2_what_is_done_at_one_gateway_holds_at_both_and_outlives_an_empty_store(server: servers.Server) -> None:
    async def steps() -> None:
        async with scene(**sections(server)) as first:
            second = await beside(first)
            good, bad = await added(first, tenant="acme"), await added(second, tenant="acme")
            assert (await at_admin(first, "POST", "/admin/keys", {"tenant": "acme"})).status_code == 409
            for one in (first, second):
                for made in (good, bad):
                    await until_told(one, made["key"], (200, ""))
            await revoked(second, bad["id"])
            assert await told(second, bad["key"]) == (401, "invalid_api_key")
            await until_told(first, bad["key"], (401, "invalid_api_key"))
            server.kill()
            await first.until(lambda: first.app.obstacles() != [])
            assert await told(first, good["key"]) == (503, "ledger_unavailable")
            assert await told(first, bad["key"]) == (401, "invalid_api_key")
            assert (await at_admin(first, "POST", "/admin/keys", {"tenant": "batchco"})).status_code == 503
            server.start()
            await first.until(lambda: first.app.obstacles() == [] == second.app.obstacles())
            for one in (first, second):
                assert await told(one, good["key"]) == (200, "")
                assert await told(one, bad["key"]) == (401, "invalid_api_key")
            await first.until(lambda: server.ask("HLEN", "headworks:{main}:api-keys") == 3)
            await second.app.stop()

    run("uvloop", steps())


def test_H2_the_verb_asks_the_store_and_the_gateways_follow(
    server: servers.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def verb(*words: str) -> str:
        assert await asyncio.to_thread(headworks, ["keys", *words, "--config", str(file)]) == 0, capsys.readouterr().err
        return capsys.readouterr().out.strip()

    file = tmp_path / "headworks.yaml"

    async def steps() -> None:
        async with scene(**{**sections(server), "server": {}}) as front:
            file.write_text(json.dumps(front.texts | {"server": {"admin": "127.0.0.1:1"}}))
            old = await verb("add", "--tenant", "acme", "--class", "bulk")
            await until_told(front, old, (200, ""))
            (kept,) = json.loads(await verb("list", "--json"))["keys"]
            new = await verb("rotate", kept["id"], "--grace-hours", "0")
            await until_told(front, old, (401, "invalid_api_key"))
            await until_told(front, new, (200, ""))
            answer = await front.ask(chat(bearer(new), "Headworks-Class: interactive", tokens=2))
            assert (answer.status, answer.code) == (403, "forbidden")
            listed = json.loads(await verb("list", "--json"))
            assert listed["store"] == server.url
            assert [key["state"] for key in listed["keys"]] == ["revoked", "active"]

    run("uvloop", steps())


def test_H2_a_gateway_with_another_pepper_does_not_start(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps() -> None:
        async with scene(**sections(server)) as first:
            await added(first, tenant="acme")
            monkeypatch.setitem(ENVIRONMENT, "KEYS_SECRET", PEPPER + "x")
            with pytest.raises(Exception, match=r"another pepper than that in ledger\.keys_secret"):
                await beside(first)

    run("asyncio", steps())

"""An operator's word at one of several gateways over one ledger: it holds at all, also at those that come later (F13, D4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, Scene, chat, run, scene

from headworks.config import build
from headworks.gateway.app import App
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
DOMAINS = count(1)
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
WITH_KEY = {"admin_key": "env:ADMIN"}
AUTH = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


async def post(s: Scene, path: str, **body: str) -> httpx.Response:
    host, port = s.app.admin_address[:2]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
        return await client.post(path, json=body, headers=AUTH)


async def beside(first: Scene, **sections: Any) -> Scene:
    config = first.text(**sections)
    other = Scene(App(build.policy(config, number=1), build.settings(config, ENVIRONMENT)), first.engines, first.texts)
    await other.app.start()
    return other


def test_F13_a_word_to_one_gateway_holds_at_all_and_at_those_that_come_later(server: servers.Server) -> None:
    async def steps() -> None:
        ledger = {"url": server.url, "domain": f"orders{next(DOMAINS)}", "lease_s": 5}
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger=ledger) as one:
            other = await beside(one)
            told = (await post(one, "/admin/tenants/freeze", tenant="acme", reason="it floods us")).json()
            assert told["holds"].startswith("all gateways of this ledger")
            await post(one, "/admin/mode/observe", reason="a bad limit")
            await other.until(lambda: other.app.policy.tenants["acme"].frozen and other.app.policy.observe)
            answer = await other.ask(chat(key="ACME_KEY"))
            assert (answer.status, answer.json()["error"]["code"]) == (403, "tenant_frozen")
            shown = other.app.by_hand.orders_shown()
            assert (shown["frozen"]["acme"].actor, shown["frozen"]["acme"].reason) == ("server.admin_key", "it floods us")
            assert [word.verb for word in shown["shared"]] == ["freeze", "observe"]
            assert [entry.declared.verb for entry in shown["declared"]] == ["freeze", "observe"]
            late = await beside(one)
            assert late.app.policy.tenants["acme"].frozen and late.app.policy.observe, "before it listened"
            await late.app.stop()
            assert (await post(other, "/admin/tenants/thaw", tenant="acme", reason="mended")).status_code == 200
            assert (await post(other, "/admin/mode/enforce", reason="mended")).status_code == 200
            await one.until(lambda: not one.app.policy.tenants["acme"].frozen and not one.app.policy.observe)
            await other.app.stop()

    run("asyncio", steps())


def test_F13_a_store_that_has_forgotten_is_told_again(server: servers.Server) -> None:
    async def steps() -> None:
        domain = f"orders{next(DOMAINS)}"
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger={"url": server.url, "domain": domain, "lease_s": 5}) as one:
            other = await beside(one)
            replica = next(iter(one.app.replicas.engines))
            await post(one, "/admin/replicas/drain", replica=replica, reason="a new card")
            await other.until(lambda: other.app.replicas_shown()[replica]["told"] == "drain")
            (told,) = other.app.by_hand.orders_shown()["in_force"]
            assert (told.verb, told.subject, told.actor, told.reason) == ("drain", replica, "server.admin_key", "a new card")
            (mine,) = one.app.by_hand.orders_shown()["in_force"]
            assert (mine.verb, mine.subject, mine.actor, mine.reason) == (told.verb, replica, told.actor, told.reason)
            await one.app._shared.ask("DEL", f"headworks:{{{domain}}}:orders")
            await post(other, "/admin/replicas/resume", replica=replica, reason="done")
            await one.until(lambda: one.app.replicas_shown()[replica]["told"] == "")
            assert one.app.by_hand.orders_shown()["in_force"] == []
            await other.app.stop()

    run("asyncio", steps())


def test_F13_an_older_word_that_was_read_meanwhile_does_not_undo_what_is_ordered_here(server: servers.Server) -> None:
    async def steps() -> None:
        ledger = {"url": server.url, "domain": f"orders{next(DOMAINS)}", "lease_s": 5}
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger=ledger) as one:
            other = await beside(one)
            await post(one, "/admin/tenants/freeze", tenant="acme", reason="it floods us")
            await other.until(lambda: other.app.policy.tenants["acme"].frozen)
            shared = one.app.by_hand._shared
            assert shared is not None
            async with one.app.replicas.changing:  # as while a policy is taken in
                again = asyncio.create_task(post(one, "/admin/tenants/freeze", tenant="acme", reason="still"))
                await one.until(lambda: len(one.app.replicas.changing._waiters or ()) == 1)
                await post(other, "/admin/tenants/thaw", tenant="acme", reason="mended")
                await one.until(lambda: shared.known["tenant acme"].verb == "thaw")
                await one.until(lambda: len(one.app.replicas.changing._waiters or ()) == 2)
            assert (await again).status_code == 200
            await other.until(lambda: other.app.policy.tenants["acme"].frozen)
            assert one.app.policy.tenants["acme"].frozen
            assert [word.reason for word in shared.known.values()] == ["still"]
            await other.app.stop()

    run("asyncio", steps())


def test_F13_a_fault_while_listening_is_told_and_what_was_ordered_is_taken_in_all_the_same(
    server: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        ledger = {"url": server.url, "domain": f"orders{next(DOMAINS)}", "lease_s": 5}
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger=ledger) as one:
            other = await beside(one)
            shared = other.app.by_hand._shared
            assert shared is not None
            take, faults = shared._take, [RuntimeError("no room for a policy")]

            async def take_once_more() -> None:
                if faults:
                    raise faults.pop()
                await take()

            shared._take = take_once_more
            await post(one, "/admin/tenants/freeze", tenant="acme", reason="it floods us")
            await other.until(lambda: other.app.policy.tenants["acme"].frozen)
            told = [record.getMessage() for record in caplog.records if "not followed" in record.getMessage()]
            assert sum("no room for a policy" in one for one in told) == 1
            await post(one, "/admin/tenants/thaw", tenant="acme", reason="mended")
            await other.until(lambda: not other.app.policy.tenants["acme"].frozen)
            await other.app.stop()

    run("asyncio", steps())


def test_F13_a_mode_that_was_taken_back_is_the_configurations_also_for_who_starts_later(server: servers.Server) -> None:
    """All observe by their file, one orders to enforce and takes it back; then the file says enforce, and one starts by it."""

    async def steps() -> None:
        ledger = {"url": server.url, "domain": f"orders{next(DOMAINS)}", "lease_s": 5}
        observing, enforcing = WITH_KEY | {"mode": "observe"}, WITH_KEY | {"mode": "enforce"}
        async with scene(tenants=TENANTS, server=observing, ledger=ledger) as one:
            await post(one, "/admin/mode/enforce", reason="it floods us")
            held = await beside(one)
            assert not held.app.policy.observe
            agrees = await beside(one, server=enforcing)
            assert not agrees.app.policy.observe
            await agrees.reload(one.text(server=observing))
            assert not agrees.app.policy.observe, "an order is in force whatever the file said when it was heard"
            await post(one, "/admin/mode/observe", reason="mended")
            await held.until(lambda: held.app.policy.observe, 15.0)
            await agrees.until(lambda: agrees.app.policy.observe, 15.0)
            assert held.app.by_hand.orders_shown()["mode_order"] is None
            late = await beside(one, server=enforcing)
            await held.reload(one.text(server=enforcing))
            assert (held.app.policy.observe, late.app.policy.observe) == (False, False)
            for other in (held, agrees, late):
                await other.app.stop()

    run("asyncio", steps())

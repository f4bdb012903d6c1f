"""Break-glass in a whole gateway: freeze and thaw, observe and enforce, each taken back, each with who, when and why (F13)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, call, chat, first_event, rest_of_stream, run, scene

from headworks.cli.main import run as headworks

both_loops = pytest.mark.parametrize("loop", LOOPS)
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "classes": ["interactive", "bulk"]}}
WITH_KEY = {"admin_key": "env:ADMIN"}
AUTH = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}
REFUSES = {"interactive": {"on_tenant_full": "refuse", "slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}}}


async def post(s: Scene, path: str, headers: dict[str, str] | None = None, **body: str) -> httpx.Response:
    host, port = s.app.admin_address[:2]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
        return await client.post(path, json=body, headers=AUTH if headers is None else headers)


async def freeze(s: Scene, tenant: str = "acme", verb: str = "freeze") -> httpx.Response:
    return await post(s, f"/admin/tenants/{verb}", tenant=tenant, reason="it floods us")


@both_loops
def test_F13_a_frozen_tenant_gets_nothing_new_what_waits_is_refused_what_runs_runs_on_and_thaw_takes_it_back(loop: str) -> None:
    async def steps() -> None:
        pool = {"active_requests_max": 1}
        async with scene(pool=pool, tenants=TENANTS, server=WITH_KEY, classes=PATIENT) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=1200))
            await first_event(running)
            waiting = asyncio.create_task(s.ask(chat("Idempotency-Key: waits", key="ACME_KEY")))
            other = asyncio.create_task(s.ask(chat(key="BATCHCO_KEY")))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 2)
            assert (await freeze(s)).status_code == 200
            refused = await waiting
            assert (refused.status, refused.json()["error"]["code"]) == (403, "tenant_frozen")
            assert refused.fields["x-should-retry"] == "false" and "retry-after" not in refused.fields
            now = await s.ask(chat("Idempotency-Key: new", key="ACME_KEY"))
            assert (now.status, now.json()["error"]["code"]) == (403, "tenant_frozen")
            assert s.outcome("new")["reason"] == "tenant_frozen"
            dry = call("/admit", key="ACME_KEY", body={"model": "tiny", "prompt": "one", "max_tokens": 4})
            assert (await s.ask(dry)).status in (403, 404, 200)
            body, whole = await rest_of_stream(running)
            assert whole and b"[DONE]" in body, "what runs runs on"
            assert (await other).status == 200, "nobody else is concerned"
            text = s.app.registry.render().decode()
            assert 'outcome="refused",reason="tenant_frozen"' in text
            assert (await freeze(s, verb="thaw")).status_code == 200
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            running.close()

    run(loop, steps())


def test_F13_a_freeze_holds_in_observe_mode_and_over_a_reload() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, server=WITH_KEY | {"mode": "observe"}) as s:
            await freeze(s)
            assert (await s.ask(chat(key="ACME_KEY"))).status == 403
            await s.reload(s.text(classes=PATIENT))
            assert (await s.ask(chat(key="ACME_KEY"))).status == 403
            assert (await s.ask(chat(key="BATCHCO_KEY"))).status == 200
            await freeze(s, verb="thaw")
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200

    run("uvloop", steps())


def test_F13_a_session_is_neither_opened_nor_used_by_a_frozen_tenant() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, server=WITH_KEY) as s:
            opens = call("/admit/session", key="ACME_KEY", body={"tokens": 500, "deadline_s": 20})
            opened = await s.ask(opens)
            assert opened.status == 200, opened.body
            session = opened.json()["session"]
            await freeze(s)
            assert (await s.ask(opens)).json()["error"]["code"] == "tenant_frozen"
            within = await s.ask(chat(f"Headworks-Session: {session}", key="ACME_KEY"))
            assert within.json()["error"]["code"] == "tenant_frozen"
            await freeze(s, verb="thaw")
            assert (await s.ask(chat(f"Headworks-Session: {session}", key="ACME_KEY"))).status == 200
            ended = f"DELETE /admit/session/{session} HTTP/1.1\r\nHost: edge\r\n"
            await s.ask(f"{ended}Authorization: Bearer {ENVIRONMENT['ACME_KEY']}\r\n\r\n".encode())

    run("uvloop", steps())


def test_F13_with_a_ledger_in_a_file_a_freeze_and_a_mode_hold_over_a_restart(tmp_path: Path) -> None:
    async def steps() -> None:
        ledger = {"url": f"sqlite:{tmp_path}/ledger.db"}
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger=ledger) as s:
            found = (await freeze(s)).json()
            assert found["holds"] == "this gateway, over restarts"
            await post(s, "/admin/mode/observe", reason="a bad limit")
            await s.restart()
            assert (await s.ask(chat(key="ACME_KEY"))).status == 403
            shown = (await s.admin("/admin/orders", **AUTH)).json()
            assert shown["mode"] == "observe" and shown["frozen"]["acme"]["reason"] == "it floods us"
            assert s.everything("policy")[-1]["tenants"]["acme"]["frozen"], "so that plan decides as it was decided"
            await freeze(s, verb="thaw")
            await post(s, "/admin/mode/enforce", reason="mended")
            await s.restart()
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            assert s.app.by_hand.orders_shown()["mode_order"] is None
            assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []

    run("uvloop", steps())


def test_F13_observe_refuses_nobody_and_enforce_refuses_again() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        async with scene(tenants=tenants, server=WITH_KEY, classes=REFUSES) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=1800))
            await first_event(client)
            assert (await s.ask(chat(key="ACME_KEY"))).status == 429
            found = (await post(s, "/admin/mode/observe", reason="a bad limit")).json()
            assert (found["mode"], found["mode_order"]["actor"]) == ("observe", "server.admin_key")
            assert found["holds"] == "this gateway, until it ends"
            assert 'mode="observe"' in s.app.registry.render().decode()
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            assert (await post(s, "/admin/mode/observe", reason="twice")).status_code == 409
            found = (await post(s, "/admin/mode/enforce", reason="mended")).json()
            assert (found["mode"], found["mode_order"]) == ("enforce", None)
            assert (await s.ask(chat(key="ACME_KEY"))).status == 429
            client.close()

    run("uvloop", steps())


def test_F13_each_order_stands_in_the_log_with_who_what_of_what_why_and_what_came_of_it() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, server=WITH_KEY) as s:
            await freeze(s)
            await freeze(s, verb="thaw")
            await post(s, "/admin/mode/observe", reason="a bad limit")
            await post(s, "/admin/mode/enforce", reason="mended")
            await post(s, "/admin/replicas/drain", replica="llama/0", reason="new weights")
            await post(s, "/admin/replicas/resume", replica="llama/0", reason="done")
            await post(s, "/admin/ledger/release", execution="x1", reason="its engine was scrapped")
            found = s.everything("declared")
            assert {one["actor"] for one in found} == {"server.admin_key"}
            assert [(one["verb"], one["subject"], one["reason"]) for one in found] == [
                ("freeze", "acme", "it floods us"),
                ("thaw", "acme", "it floods us"),
                ("observe", "this gateway", "a bad limit"),
                ("enforce", "this gateway", "mended"),
                ("drain", "llama/0", "new weights"),
                ("resume", "llama/0", "done"),
                ("release", "x1", "its engine was scrapped"),
            ]
            assert [one["outcome"] for one in found] == ["done"] * 6 + ["ok"]
            shown = (await s.admin("/admin/orders", **AUTH)).json()["declared"]
            assert [one["declared"] for one in shown] == found and all(one["utc"].startswith("20") for one in shown)

    run("uvloop", steps())


def test_F13_a_stored_admin_key_is_named_by_its_id(tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, server=WITH_KEY, ledger={"url": f"sqlite:{tmp_path}/ledger.db"}) as s:
            made = (await post(s, "/admin/keys", admin=True)).json()  # type: ignore[arg-type]
            with_it = {"authorization": f"Bearer {made['key']}"}
            told = await post(s, "/admin/tenants/freeze", with_it, tenant="acme", reason="why")
            assert told.json()["frozen"]["acme"]["actor"] == made["id"]
            assert s.everything("declared")[0]["actor"] == made["id"]
            await freeze(s, verb="thaw")

    run("uvloop", steps())


def test_F13_an_order_wants_an_admin_key_a_reason_and_something_to_do(tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            assert (await freeze(s)).status_code == 403, "no admin key is known, so nobody may"
        async with scene(tenants=TENANTS, server=WITH_KEY) as s:
            for body in ({"tenant": "acme"}, {"tenant": "acme", "reason": "two\nlines"}, {"reason": "who?"}):
                assert (await post(s, "/admin/tenants/freeze", **body)).status_code == 400
            assert (await post(s, "/admin/mode/observe")).status_code == 400
            assert (await post(s, "/admin/tenants/freeze", {}, tenant="acme", reason="why")).status_code == 401
            nobody = await freeze(s, "nobody")
            assert nobody.status_code == 409 and "There are acme, batchco." in nobody.json()["error"]["message"]
            assert (await freeze(s, verb="thaw")).json()["error"]["message"] == "acme is not frozen."
            assert (await post(s, "/admin/mode/enforce", reason="why")).status_code == 409
            assert s.everything("declared") == []

    run("uvloop", steps())


def test_F13_the_verbs_say_what_holds_and_for_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verb(s: Scene, *words: str) -> tuple[int, str]:
        host, port = s.app.admin_address[:2]
        status = await asyncio.to_thread(headworks, [*words, "--admin", f"http://{host}:{port}"])
        said: Any = capsys.readouterr()
        return status, said.out + said.err

    async def steps() -> None:
        monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])
        async with scene(tenants=TENANTS, server=WITH_KEY) as s:
            assert await verb(s, "tenant", "list") == (0, "nobody is frozen\n")
            assert await verb(s, "tenant", "freeze", "acme", "--reason", "it floods us") == (
                0,
                "acme is frozen (this gateway, until it ends)\n",
            )
            status, text = await verb(s, "tenant", "list")
            assert status == 0 and "acme" in text and "server.admin_key: freeze acme: it floods us (done)" in text
            await s.ask(chat("Idempotency-Key: k", key="ACME_KEY"))
            status, text = await verb(s, "explain", "k")
            assert status == 0 and "it was refused at once: tenant acme was frozen by its operator (tenant_frozen)" in text
            assert "Nothing but its operator's word would have admitted it: headworks tenant thaw." in text
            assert (await verb(s, "tenant", "thaw", "acme", "--reason", "it is sorry"))[1].startswith("acme is served again")
            status, text = await verb(s, "tenant", "thaw", "acme", "--reason", "again")
            assert status == 2 and "409: acme is not frozen." in text
            assert await verb(s, "mode", "show") == (0, "mode enforce, as the configuration says\n")
            status, text = await verb(s, "mode", "observe", "--reason", "a bad limit")
            assert text.startswith("mode observe, by server.admin_key, 20") and text.endswith(
                "Z: a bad limit (this gateway, until it ends)\n"
            )
            assert (await verb(s, "mode", "enforce", "--reason", "mended"))[1] == "mode enforce, as the configuration says\n"

    run("uvloop", steps())

"""Stored keys on a whole gateway: what each opens, on both ports, and when it stops to (H2, K43, reliability section 10)."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, call, chat, completion, first_event, get, rest_of_stream, run, scene

from headworks.gateway.proxy import METHODS
from headworks.ledgers.keys import KeyStore, Wanted

TENANTS = {
    "acme": {"classes": ["interactive", "batch", "bulk"], "class": "interactive"},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk"},
}
ADMIN = ENVIRONMENT["ADMIN"]


@contextlib.asynccontextmanager
async def keyed(directory: Path, **sections: Any) -> AsyncIterator[Scene]:
    given: dict[str, Any] = {"tenants": TENANTS, "server": {"admin_key": "env:ADMIN"}}
    ledger = {"url": f"sqlite:{directory / 'ledger.db'}"}
    async with scene(pool={"models": ["tiny", "other"]}, ledger=ledger, **(given | sections)) as s:
        yield s


async def at_admin(s: Scene, method: str, path: str, asked: Any = None, key: str | None = ADMIN) -> httpx.Response:
    host, port = s.app.admin_address[:2]
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=False) as client:
        return await client.request(method, path, json=asked, headers=headers)


async def added(s: Scene, **asked: Any) -> Any:
    answer = await at_admin(s, "POST", "/admin/keys", asked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def peppers(directory: Path) -> list[str]:
    """Made with the first key, so a sign that one was issued."""
    return [path.read_text().strip() for path in directory.glob("*.pepper")]


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


@pytest.mark.parametrize("loop", LOOPS)
def test_H2_a_key_opens_from_when_it_is_issued_until_it_is_revoked(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path, classes=PATIENT) as s:
            made = await added(s, tenant="acme")
            client = await s.connect()
            client.send(chat(bearer(made["key"]), "Idempotency-Key: k1", stream=True, tokens=100))
            await first_event(client)
            ended = await at_admin(s, "POST", f"/admin/keys/{made['id']}/revoke", {})
            assert (ended.status_code, ended.json()["state"]) == (200, "revoked")
            refused = await s.ask(chat(bearer(made["key"])))
            assert (refused.status, refused.code) == (401, "invalid_api_key")
            assert (await rest_of_stream(client))[1], "what was let in before runs to its end"
            client.close()
            await s.settled()
            assert s.outcome("k1")["client"] == f"acme/{made['id']}"

    run(loop, steps())


def test_H2_what_another_process_revokes_or_issues_holds_within_five_seconds(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = await added(s, tenant="acme")
            assert (await s.ask(chat(bearer(made["key"])))).status == 200
            store = KeyStore(str(tmp_path / "ledger.db"))
            store.revoke(made["id"], time.time())
            issued = store.issue(Wanted("acme"), time.time())
            store.close()
            assert issued is not None
            began_s = time.monotonic()
            await s.until(lambda: f"acme/{issued[1].id}" in s.app.key_watch.clients)
            assert (await s.ask(chat(bearer(made["key"])))).status == 401
            assert (await s.ask(chat(bearer(issued[0])))).status == 200
            assert time.monotonic() - began_s < 5.0

    run("uvloop", steps())


def test_H2_a_key_ends_by_the_clock_without_anybody_asking(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = await added(s, tenant="acme", lifetime_s=0.5)
            assert (await s.ask(chat(bearer(made["key"])))).status == 200
            await s.until(lambda: f"acme/{made['id']}" not in s.app.key_watch.clients)
            assert (await s.ask(chat(bearer(made["key"])))).status == 401

    run("uvloop", steps())


def test_H2_stored_keys_outlive_the_process(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = await added(s, tenant="acme", classes=["bulk"])
        async with keyed(tmp_path) as s:
            assert (await s.ask(chat(bearer(made["key"])))).status == 200
            assert (await s.ask(chat(bearer(made["key"]), "Headworks-Class: batch"))).status == 403

    run("uvloop", steps())


# what a key opens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
def test_H2_a_key_is_held_to_its_classes_and_models_on_every_route(ask: Any, stream: bool, tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            key = (await added(s, tenant="acme", classes=["bulk", "batch"], models=["tiny"]))["key"]

            async def outcome(*fields: str, **more: Any) -> tuple[int, str]:
                answer = await s.ask(ask(bearer(key), *fields, stream=stream, **more))
                return answer.status, answer.code if answer.status != 200 else ""

            assert await outcome("Headworks-Class: batch") == (200, "")
            assert await outcome("Headworks-Class: interactive") == (403, "forbidden")
            assert await outcome("Headworks-Class: ") == (403, "forbidden")
            assert await outcome("Headworks-Class: none-such") == (403, "forbidden")
            assert await outcome(model="other") == (404, "model_not_found")
            assert await outcome(model="none-such") == (404, "model_not_found")
            assert await outcome("Idempotency-Key: k1") == (200, "")
            assert s.outcome("k1")["service_class"] == "bulk", "its tenant's own class is not the key's: then its first"

    run("uvloop", steps())


def test_H2_a_key_is_not_told_a_model_it_may_not_use_from_one_there_is_not(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            key = (await added(s, tenant="acme", models=["tiny"]))["key"]
            theirs, nobodys = [(await s.ask(chat(bearer(key), model=model))).json()["error"] for model in ("other", "othes")]
            assert theirs["message"].replace("other", "othes") == nobodys["message"]
            assert {**theirs, "message": ""} == {**nobodys, "message": ""}
            rows = (await s.ask(get("/v1/models", bearer(key)))).json()["data"]
            assert [row["id"] for row in rows] == ["tiny"]

    run("uvloop", steps())


@pytest.mark.parametrize("expects", [True, False], ids=["continue", "at-once"])
def test_H2_who_may_not_is_answered_before_a_byte_of_the_body(expects: bool, tmp_path: Path) -> None:
    """Tenant and class are in the head. The body is promised, and never sent."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            key = (await added(s, tenant="acme", classes=["bulk"]))["key"]
            fields = ["Expect: 100-continue"] if expects else []
            for given, status, code in (
                ([], 401, "invalid_api_key"),
                ([bearer("hw-nobody")], 401, "invalid_api_key"),
                ([bearer(key), "Headworks-Class: interactive"], 403, "forbidden"),
            ):
                client = await s.connect()
                client.send(chat(*given, *fields).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                answer = await client.answer()
                assert (answer.status, answer.code) == (status, code)
                client.close()

    run("uvloop", steps())


def test_H2_a_model_is_judged_before_anything_is_counted(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            key = (await added(s, tenant="acme", models=["tiny"]))["key"]
            assert (await s.ask(chat(bearer(key), "Idempotency-Key: k1", model="other"))).status == 404
            assert s.records("k1") == []
            assert s.engines[0].requests == 0

    run("uvloop", steps())


def test_H2_a_reload_that_takes_a_class_from_the_tenant_takes_it_from_its_keys(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            key = (await added(s, tenant="acme", classes=["bulk"]))["key"]
            s.texts["tenants"] = {"acme": {"classes": ["interactive"]}}
            s.reload(s.text())
            refused = await s.ask(chat(bearer(key)))
            assert (refused.status, refused.code) == (403, "forbidden")
            assert refused.json()["error"]["message"] == "This key may use no class that its tenant still has."
            s.texts["tenants"] = {"batchco": TENANTS["batchco"]}
            s.reload(s.text())
            assert (await s.ask(chat(bearer(key)))).status == 401

    run("uvloop", steps())


SPOOFED = [
    *(
        "X-Tenant: batchco",
        "X-Client: batchco/BATCHCO_KEY",
        "x-llm-d-inference-fairness-id: batchco",
        "X-Forwarded-User: batchco",
    ),
    *("OpenAI-Organization: batchco", "X-Portkey-Custom-Host: http://10.0.0.1", "X-Envoy-Original-Path: /admin/keys"),
]


def test_K43_no_header_and_no_field_makes_another_tenant(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = await added(s, tenant="acme")
            for number, header in enumerate(SPOOFED):
                labels = {"user": "batchco", "metadata": {"tenant": "batchco"}}
                answer = await s.ask(chat(bearer(made["key"]), header, f"Idempotency-Key: k{number}", **labels))
                assert answer.status == 200
                found = s.outcome(f"k{number}")
                assert (found["key"][0], found["client"]) == ("acme", f"acme/{made['id']}")

    run("uvloop", steps())


# every route, every role

READS = ["/admin/snapshot", "/admin/ledger", "/admin/ledger/audit", "/admin/keys"]
WRITES = ["/admin/keys", "/admin/keys/x/rotate", "/admin/keys/x/revoke"]
PUBLIC = ["/v1/models"]
SHUT = (401, 429)
"""Not with this key, the second time and again because there were so many."""


def test_H2_each_role_opens_its_own_port_and_no_other(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            tenant, admin = (await added(s, tenant="acme"))["key"], (await added(s, admin=True))["key"]
            (hashed,) = [key.hash.hex() for key in KeyStore(str(tmp_path / "ledger.db")).kept() if not key.tenant]
            nobodies = [None, "hw-nobody", hashed, ENVIRONMENT["BATCHCO_KEY"], tenant]
            for path in READS:
                for key in nobodies:
                    assert (await at_admin(s, "GET", path, key=key)).status_code in SHUT, (path, key)
                for key in (admin, ADMIN):
                    assert (await at_admin(s, "GET", path, key=key)).status_code == 200, path
            for path in WRITES:
                for key in nobodies:
                    assert (await at_admin(s, "POST", path, {}, key=key)).status_code in SHUT, (path, key)
                for key in (admin, ADMIN):
                    assert (await at_admin(s, "POST", path, {}, key=key)).status_code in (400, 404), path
            for path in (*READS, *WRITES):
                for method in ("PUT", "DELETE", "PATCH"):
                    assert (await at_admin(s, method, path, {}, key=tenant)).status_code == 405
            for path in PUBLIC:
                for key, status in ((tenant, 200), (admin, 401), (ADMIN, 401), (hashed, 401)):
                    assert (await s.ask(get(path, bearer(key)))).status == status
            for path in (*READS, *WRITES):
                assert (await s.ask(get(path, bearer(admin)))).status == 404, "the public port has no such thing"
                assert (await s.ask(call(path, bearer(admin), body={}))).status == 404
            assert (await at_admin(s, "GET", "/v1/models", key=admin)).status_code == 404

    run("uvloop", steps())


@pytest.mark.parametrize("host", ["admin/livez?", "evil.example", "127.0.0.1:1/livez", "a/abc?d=", "localhost@evil.example"])
def test_H3_no_host_header_opens_the_routes_of_keys(host: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            address, port = s.app.admin_address[:2]
            async with httpx.AsyncClient(base_url=f"http://{address}:{port}", trust_env=False, verify=False) as client:
                for method, path in [("GET", "/admin/keys"), *(("POST", path) for path in WRITES)]:
                    answer = await client.request(method, path, json={"tenant": "acme"}, headers={"Host": host})
                    assert answer.status_code in (400, 401)
            assert peppers(tmp_path) == []

    run("uvloop", steps())


def test_H2_wrong_admin_keys_are_slowed_down_and_right_ones_pass(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            found = [await at_admin(s, "GET", "/admin/keys", key="guess") for _ in range(22)]
            assert [answer.status_code for answer in found[:20]] == [401] * 20
            assert found[21].status_code == 429
            assert found[21].json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(found[21].headers["retry-after"]) <= 3
            assert (await at_admin(s, "GET", "/admin/keys")).status_code == 200

    run("uvloop", steps())


def test_H3_every_route_wants_a_key_but_probes_and_metrics(tmp_path: Path) -> None:
    """Whatever routes are added: nothing answers that has not been locked (LiteLLM, CVE-2026-12771)."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            routes: Any = s.app._admin.config.app
            asked = [(method, route.path.replace("{name}", "x")) for route in routes.routes for method in sorted(route.methods)]
            assert len(asked) > 10
            for method, path in asked:
                status = (await at_admin(s, method, path, key=None)).status_code
                assert status in ((200,) if path in ("/livez", "/readyz", "/metrics") else SHUT), (method, path)
            for path, methods in METHODS.items():
                for method in methods:
                    client = await s.connect()
                    client.send(call(path, body={}) if method == "POST" else get(path, method=method))
                    assert (await client.answer(head_only=method == "HEAD")).status == 401, (method, path)
                    client.close()

    run("uvloop", steps())


def test_H2_without_any_admin_key_the_port_reads_and_writes_nothing(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path, server={}) as s:
            assert (await at_admin(s, "GET", "/admin/keys", key=None)).status_code == 200
            for path in WRITES:
                refused = await at_admin(s, "POST", path, {"tenant": "acme"}, key=None)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
            assert peppers(tmp_path) == []
            store = KeyStore(str(tmp_path / "ledger.db"))
            issued = store.issue(Wanted(""), time.time())
            store.close()
            assert issued is not None
            await s.until(lambda: s.app.key_watch.admin_exists)
            assert (await at_admin(s, "GET", "/admin/keys", key=None)).status_code == 401
            assert (await at_admin(s, "POST", "/admin/keys", {"tenant": "acme"}, key=issued[0])).status_code == 201

    run("uvloop", steps())


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_H3_no_page_in_a_browser_can_change_a_key(kind: str, tmp_path: Path) -> None:
    """A form is sent without asking first. JSON is not, and nobody here answers the question."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            host, port = s.app.admin_address[:2]
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=False) as client:
                headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
                body = json.dumps({"tenant": "acme"}).encode()
                assert (await client.post("/admin/keys", content=body, headers=headers)).status_code == 415
                asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
                assert (await client.options("/admin/keys", headers=asked)).status_code == 405
            assert peppers(tmp_path) == []

    run("uvloop", steps())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"[" * 50_000, 400),
        (b'{"tenant": 5}', 400),
        (b" " * 65_537, 413),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_H3_bodies_that_ask_for_nothing_are_refused(body: bytes, status: int, tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            host, port = s.app.admin_address[:2]
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=False) as client:
                headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
                assert (await client.post("/admin/keys", content=body, headers=headers)).status_code == status

    run("uvloop", steps())


def test_H2_a_memory_ledger_says_what_keys_need() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, server={"admin_key": "env:ADMIN"}) as s:
            for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys")):
                answer = await at_admin(s, method, path, {"tenant": "acme"})
                assert answer.status_code == 501
                assert "set ledger.url to sqlite:PATH" in answer.json()["error"]["message"]

    run("uvloop", steps())


def test_H2_a_key_stands_in_no_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made, admin = await added(s, tenant="acme"), await added(s, admin=True)
            secrets = [made["key"].removeprefix("hw-"), admin["key"].removeprefix("hw-"), *peppers(tmp_path)]
            secrets += [key.hash.hex() for key in KeyStore(str(tmp_path / "ledger.db")).kept()]
            assert len(secrets) == 5
            said = [repr(await s.ask(chat(bearer(key)))) for key in (made["key"], made["key"] + "x", admin["key"])]
            said += [(await at_admin(s, "GET", path)).text for path in ("/metrics", "/readyz", *READS)]
            said.append((await at_admin(s, "POST", f"/admin/keys/{made['id']}/revoke", {})).text)
            said.append((await at_admin(s, "POST", "/admin/keys", {"tenant": made["key"][:3]})).text)
            said += decisions(s)
            said += [
                record.getMessage() + repr(record.args) for record in caplog.records if record.name.startswith("headworks")
            ]
            for text in said:
                for secret in secrets:
                    assert secret not in text

    run("uvloop", steps())


def decisions(s: Scene) -> list[str]:
    return [path.read_text() for path in Path(s.texts["log"]["decisions"]).iterdir()]

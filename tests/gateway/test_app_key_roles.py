"""Every route and every role, what the admin port takes, and where no key ever stands (H2, H3, reliability section 10)."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, Scene, call, chat, get, run, scene
from key_scene import ADMIN, TENANTS, added, at_admin, bearer, keyed, peppers

from headworks.gateway.routes import METHODS
from headworks.ledgers.keys import KeyStore, Wanted

READS = ["/admin/snapshot", "/admin/ledger", "/admin/ledger/audit", "/admin/keys"]
WRITES = ["/admin/keys", "/admin/keys/x/rotate", "/admin/keys/x/revoke"]
PUBLIC = ["/v1/models"]
OPEN = ("/livez", "/readyz", "/metrics", "/openapi.json")
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
    """Whatever routes are added: nothing answers that has not been locked (LiteLLM, CVE-2026-12771).

    The dashboard's own files say nothing of this gateway, and the page they make asks for the key.
    """

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            routes: Any = s.app._admin.config.app
            asked = [(method, route.path.replace("{name}", "x")) for route in routes.routes for method in sorted(route.methods)]
            assert len(asked) > 10
            for method, path in asked:
                status = (await at_admin(s, method, path, key=None)).status_code
                assert status in ((200,) if path in OPEN or path.startswith("/dashboard") else SHUT), (method, path)
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
    return [path.read_text() for path in Path(s.texts["log"]["decisions"]).iterdir() if path.is_file()]

"""What docs/advisories.md asks for and no other file has: every route by every role, headers that steer, keys of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_scene import ENVIRONMENT, SIZES, chat, get, run, scene
from key_scene import ADMIN, added, at_admin, bearer, keyed

from headworks.gateway.openapi import OPEN, READS, WRITES, document
from headworks.ledgers.keys import KeyStore
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine

SHUT = (401, 429)
ENDLESS = "/admin/feed"


class Listening(FakeEngine):
    """Remembers the heads of what it was asked."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(engine=SIZES, context_tokens=2048))
        self.heard: list[dict[str, str]] = []

    def handle(self, request: Any, connection: Any) -> None:
        if request.method == "POST":
            self.heard.append(dict(request.headers))
        super().handle(request, connection)


ROLES = ("nobody", "a wrong key", "a hash", "a tenant", "another tenant", "an admin")


@pytest.mark.parametrize("role", ROLES)
def test_H2_each_role_opens_its_routes_and_no_other(role: str, tmp_path: Path) -> None:
    """Every route that is described, with every kind of key: an admin's opens one port, a tenant's the other."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            admin, tenant = await added(s, admin=True), await added(s, tenant="acme")
            kept = KeyStore(str(tmp_path / "ledger.db")).kept()[-1]
            assert kept.tenant == "acme"
            keys = {
                "nobody": None,
                "a wrong key": "hw-wrong",
                "a hash": kept.hash.hex(),
                "a tenant": tenant["key"],
                "another tenant": ENVIRONMENT["BATCHCO_KEY"],
                "an admin": admin["key"],
            }
            key = keys[role]
            for path in READS.keys() - {ENDLESS}:
                status = (await at_admin(s, "GET", path.replace("{name}", "x"), key=key)).status_code
                assert (status in (200, 404)) is (role == "an admin" or path in OPEN), (path, status)
            for path in WRITES:
                status = (await at_admin(s, "POST", path.replace("{name}", "x"), [], key=key)).status_code
                assert (status in (400, 404)) if role == "an admin" else (status in SHUT), (path, status)
            for path, row in document(admin=False)["paths"].items():
                for method in row.keys() & {"get", "delete"}:
                    named = get(path.replace("{name}", "2026-11"), *([bearer(key)] if key else []), method=method.upper())
                    status = (await s.ask(named)).status
                    assert (status not in SHUT) is role.endswith("tenant"), (path, status)
            assert (await s.ask(chat(*([bearer(key)] if key else [])))).status == (200 if role.endswith("tenant") else 401)

    run("uvloop", steps(), within_s=60.0)


STEERING = (
    *("X-Portkey-Custom-Host: http://127.0.0.1:1", "X-Portkey-Provider: openai", "X-Portkey-Config: {}"),
    *("X-Gitlab-Model-Gateway-Url: http://127.0.0.1:1", "X-Gitlab-Host-Override: evil", "X-Forwarded-Host: evil.example"),
    *("X-Original-URL: /admin/keys", "X-Rewrite-URL: /admin/keys", "X-Forwarded-Prefix: /admin", "Forwarded: host=evil"),
    *("X-LiteLLM-Api-Base: http://127.0.0.1:1", "X-Api-Base: http://127.0.0.1:1", "X-Upstream: http://127.0.0.1:1"),
    *(
        "X-Gateway-Destination-Endpoint: 127.0.0.1:1",
        "X-Envoy-Original-Dst-Host: 127.0.0.1:1",
        "X-HTTP-Method-Override: DELETE",
    ),
    *("X-Tenant: batchco", "X-Llm-D-Inference-Fairness-Id: batchco", "X-Data-Parallel-Rank: 1", "Priority: u=0"),
)


@pytest.mark.parametrize("line", STEERING)
def test_H3_no_header_steers_a_request_or_passes(line: str) -> None:
    async def steps() -> None:
        engine = Listening()
        async with scene(engine) as s:
            assert (await s.ask(chat(line))).status == 200
            (heard,) = engine.heard
            assert line.partition(":")[0].lower() not in heard
            assert heard["host"] == engine.url.removeprefix("http://")

    run("uvloop", steps())


def test_H3_an_engines_key_goes_to_that_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pools, each with a key of its own; and neither has its client's."""
    secrets = {"first": "engine-key-of-the-first-one", "second": "engine-key-of-the-second-one"}
    for name, secret in secrets.items():
        monkeypatch.setitem(ENVIRONMENT, f"KEY_{name.upper()}", secret)

    async def steps() -> None:
        engines = {"first": Listening(), "second": Listening()}
        await engines["second"].start()
        second = {"url": engines["second"].url, "engine": "vllm", "api_key": "env:KEY_SECOND"}
        pools = {"other": {"models": ["other"], "replicas": [second]}}
        try:
            replica, models = {"api_key": "env:KEY_FIRST"}, {"models": ["tiny"]}
            async with scene(engines["first"], pool=models, replica=replica, pools=pools) as s:
                for model in ("tiny", "other", "tiny"):
                    await s.ask(chat("Authorization: Bearer of-the-client", model=model))
                for name, engine in engines.items():
                    assert {heard["authorization"] for heard in engine.heard} == {f"Bearer {secrets[name]}"}, name
                assert [len(engine.heard) for engine in engines.values()] == [2, 1]
        finally:
            await engines["second"].stop()

    run("uvloop", steps())


@pytest.mark.parametrize("name", ["%25", "%25%25", "_", "*", "%3F", ".*", "[a-z]*", "%27%20OR%201=1%20--", "%2A", "x%00", "{}"])
def test_H3_a_name_with_wildcards_finds_nothing(name: str, tmp_path: Path) -> None:
    """Not a key, not a request, and none of it takes long."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = await added(s, tenant="acme")
            assert (await s.ask(chat(bearer(made["key"])))).status == 200
            assert (await at_admin(s, "POST", f"/admin/keys/{name}/revoke", {})).status_code == 404
            found = await at_admin(s, "GET", f"/admin/explain/{name}", key=ADMIN)
            assert found.status_code == 404 and found.json()["records"] == []
            own = await s.ask(get(f"/v1/headworks/explain/{name}", bearer(made["key"])))
            assert own.status in (400, 404), own
            assert (await at_admin(s, "GET", "/admin/keys")).json()["keys"][0]["state"] == "active"

    run("uvloop", steps())

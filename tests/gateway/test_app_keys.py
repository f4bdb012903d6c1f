"""Stored keys at the public port: what each opens, and when it stops to (H2, K43)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from app_scene import LOOPS, PATIENT, chat, completion, first_event, get, rest_of_stream, run
from key_scene import TENANTS, added, at_admin, bearer, keyed

from headworks.ledgers.keys import KeyStore, Wanted


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


def test_H2_a_connection_that_repeats_its_head_is_asked_again_when_keys_or_policy_change(tmp_path: Path) -> None:
    """Who asks is found once for a head that is repeated: it may not outlive what it was found in."""

    async def steps() -> None:
        async with keyed(tmp_path) as s:
            made = [await added(s, tenant="acme") for _ in range(2)]
            clients = [await s.connect() for _ in made]

            async def told() -> list[int]:
                for client, one in zip(clients, made, strict=True):
                    client.send(chat(bearer(one["key"])))
                return [(await client.answer()).status for client in clients]

            assert [await told() for _ in range(3)] == [[200, 200]] * 3
            await at_admin(s, "POST", f"/admin/keys/{made[0]['id']}/revoke", {})
            assert await told() == [401, 200]
            s.texts["tenants"] = {"batchco": TENANTS["batchco"]}
            await s.reload(s.text())
            assert await told() == [401, 401]
            for client in clients:
                client.close()

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
            await s.reload(s.text())
            refused = await s.ask(chat(bearer(key)))
            assert (refused.status, refused.code) == (403, "forbidden")
            assert refused.json()["error"]["message"] == "This key may use no class that its tenant still has."
            s.texts["tenants"] = {"batchco": TENANTS["batchco"]}
            await s.reload(s.text())
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

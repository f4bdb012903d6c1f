"""A configuration's life under load: every request sees one policy, a bad file changes nothing, a drain loses nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from app_scene import ENVIRONMENT, SIZES, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene
from http_port import Answer

from headworks.cli.configured import Asked
from headworks.cli.reloading import Reloading

WIDE, NARROW = 4_000, 400
"""Tokens a tenant may hold at once, under one policy and under the other: one is a tenth of the other."""
AT_ONCE: dict[str, Any] = {"interactive": {"slo": {"ttft_s": 20}, "on_tenant_full": "refuse", "queue": {"wait_s_max": 20}}}


def tenants(tokens: int) -> dict[str, Any]:
    return {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": tokens}}


async def asking(s: Scene, answers: list[Answer], until: Callable[[], bool]) -> None:
    """One client that asks again at once."""
    while not until():
        answers.append(await s.ask(chat(key="ACME_KEY", tokens=30, ignore_eos=True)))
        await asyncio.sleep(0)


def limits_by_version(s: Scene) -> dict[str, set[float]]:
    """Which tenant limits the decisions of each version were made by."""
    found: dict[str, set[float]] = {}
    for record in s.everything("decision"):
        for verdict in record["verdicts"]:
            if verdict["check"] == "tenant" and verdict["unit"] == "tokens":
                found.setdefault(record["policy_version"], set()).add(verdict["limit"])
    return found


def test_I39_no_request_sees_two_policies_however_often_they_change_under_load() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(WIDE), classes=AT_ONCE) as s:
            wide, narrow = s.text(tenants=tenants(WIDE)), s.text(tenants=tenants(NARROW))
            answers: list[Answer] = []
            over = asyncio.Event()
            clients = [asyncio.ensure_future(asking(s, answers, over.is_set)) for _ in range(24)]
            versions = {s.app.policy.version}
            for turn in range(20):
                await s.reload(wide if turn % 2 else narrow)
                versions.add(s.app.policy.version)
                seen = len(answers)
                await s.until(lambda seen=seen: len(answers) > seen + 8)  # type: ignore[misc]
            over.set()
            await asyncio.gather(*clients)
            assert {answer.status for answer in answers} == {200, 429}, "the narrow one refused some"
            assert len(versions) == 2
            by_version = limits_by_version(s)
            assert sorted(map(sorted, by_version.values())) == [[NARROW], [WIDE]], by_version
            for answer in answers:
                if answer.status == 429:
                    told = answer.json()["headworks"]
                    limits = {v["limit"] for v in told["verdicts"] if (v["check"], v["unit"]) == ("tenant", "tokens")}
                    assert limits == by_version[told["policy_version"]]

    run("uvloop", steps(), within_s=60.0)


def test_I39_a_limit_cut_by_nine_tenths_under_load_kills_nothing_and_the_books_stay_right() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(WIDE), classes=AT_ONCE) as s:
            streams = [await s.connect() for _ in range(6)]
            for number, client in enumerate(streams):
                client.send(chat(f"Idempotency-Key: k{number}", key="ACME_KEY", stream=True, tokens=400, ignore_eos=True))
                await first_event(client)
            held = s.held("tenant:acme")
            assert held > NARROW
            await s.reload(s.text(tenants=tenants(NARROW)))
            assert await s.app.ledger.audit() == []
            refused = await s.ask(chat(key="ACME_KEY", tokens=4))
            assert (refused.status, refused.code) == (429, "tenant_capacity_exceeded")
            for client in streams:
                body, ended = await rest_of_stream(client)
                assert ended and b"[DONE]" in body
                client.close()
            await s.settled()
            assert {s.outcome(f"k{number}")["usage"]["output_tokens"] for number in range(6)} == {400}
            assert (await s.ask(chat(key="ACME_KEY", tokens=4))).status == 200

    run("uvloop", steps())


def test_I39_a_bad_file_under_load_changes_nothing_and_says_everything(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def steps() -> None:
        async with scene(tenants=tenants(WIDE), classes=AT_ONCE, server={"admin_key": "env:ADMIN"}) as s:
            file = tmp_path / "headworks.yaml"
            file.write_text(json.dumps(s.texts))
            reloading = Reloading(file, Asked(str(file)))
            s.app.reload_by = lambda reason: reloading.reload(s.app, reason)
            before, answers = s.app.policy.version, list[Answer]()
            client = asyncio.ensure_future(asking(s, answers, lambda: len(answers) >= 40))
            file.write_text(json.dumps({**s.texts, "polls": {}, "tenants": {"acme": {"active_tokens_max": -1}}}))
            refused = await reload_over_http(s)
            assert refused.status_code == 409
            assert [problem.partition(": ")[2].split(":")[0] for problem in refused.json()["problems"]] == [
                "polls",
                "tenants.acme.active_tokens_max",
            ]
            file.write_text(json.dumps({**s.texts, "ledger": {"url": "memory:", "lease_s": 9}}))
            assert "lease_s can only change with a restart" in (await reload_over_http(s)).json()["problems"][0]
            file.unlink()
            assert (await reload_over_http(s)).status_code == 409
            assert s.app.policy.version == before
            await client
            assert {answer.status for answer in answers} == {200}

    run("uvloop", steps())
    assert "not reloaded: " in capsys.readouterr().err


async def reload_over_http(s: Scene, **more: Any) -> httpx.Response:
    host, port = s.app.admin_address[:2]
    headers = {"Authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, headers=headers, timeout=60) as client:
        return await client.post("/admin/reload", json={"reason": "a test", **more})


def test_I39_an_operator_reloads_and_is_told_the_version_that_is_in_force(tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def steps() -> None:
        async with scene(tenants=tenants(WIDE), server={"admin_key": "env:ADMIN"}) as s:
            assert (await reload_over_http(s)).json()["error"]["message"].startswith("This gateway was started without a file")
            file = tmp_path / "headworks.yaml"
            file.write_text(json.dumps({**s.texts, "tenants": tenants(NARROW)}))
            reloading = Reloading(file, Asked(str(file)))
            s.app.reload_by = lambda reason: reloading.reload(s.app, reason)
            before = s.app.policy.version
            told = await reload_over_http(s)
            assert (told.status_code, told.json()) == (200, {"policy_version": s.app.policy.version})
            assert s.app.policy.version != before
            assert s.app.policy.tenants["acme"].active_tokens_max == NARROW
            assert (await reload_over_http(s, reason="two\nlines")).status_code == 400
            assert (await s.admin("/admin/reload")).status_code == 405

    run("uvloop", steps())


def test_I39_a_file_that_changes_is_taken_once_it_stands_still(tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def steps() -> None:
        async with scene(tenants=tenants(WIDE)) as s:
            file = tmp_path / "headworks.yaml"
            file.write_text(json.dumps(s.texts))
            reloading = Reloading(file, Asked(str(file)))
            watching = asyncio.ensure_future(reloading.when_changed(s.app, every_s=0.02))
            number = s.app.policy.number
            await asyncio.sleep(0.1)
            assert s.app.policy.number == number, "it has not changed"
            other = tmp_path / "other.yaml"
            other.write_text(json.dumps({**s.texts, "tenants": tenants(NARROW)}))
            other.rename(file)  # as editors and ConfigMaps replace a file
            await s.until(lambda: s.app.policy.tenants["acme"].active_tokens_max == NARROW, 30)
            taken = s.app.policy.number
            file.write_text("{")
            await asyncio.sleep(0.2)
            assert s.app.policy.number == taken, "half a file is no file"
            file.write_text(json.dumps(s.texts))
            await s.until(lambda: s.app.policy.tenants["acme"].active_tokens_max == WIDE, 30)
            watching.cancel()

    run("uvloop", steps())


def test_I39_a_file_that_is_still_being_written_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    async def steps() -> None:
        async with scene(tenants=tenants(WIDE)) as s:
            file = tmp_path / "headworks.yaml"
            file.write_text(json.dumps(s.texts))
            reloading = Reloading(file, Asked(str(file)))
            watching = asyncio.ensure_future(reloading.when_changed(s.app, every_s=0.3))
            number = s.app.policy.number
            for tokens in range(1_000, 1_010):  # each of them good by itself, and none of them the last word
                file.write_text(json.dumps({**s.texts, "tenants": tenants(tokens)}))
                await asyncio.sleep(0.1)
                assert s.app.policy.number == number
            await s.until(lambda: s.app.policy.tenants["acme"].active_tokens_max == 1_009, 30)
            watching.cancel()

    run("uvloop", steps())


def test_I41_a_drain_with_two_hundred_streams_loses_none_and_the_ledger_is_settled() -> None:
    streams = 200

    async def steps() -> None:
        slow = replace(SIZES.cost, base_s=0.02)
        engine = fake_engine(engine=replace(SIZES, cost=slow, running_max=256, kv_blocks=16_385, report_tokens=10))
        pool = {"active_requests_max": 256, "limit": 256}
        async with scene(engine, pool=pool, classes=AT_ONCE, server={"drain_s": 30}) as s:
            clients = [await s.connect() for _ in range(streams)]
            for client in clients:
                client.send(chat(stream=True, tokens=300, ignore_eos=True))
            for client in clients:
                assert (await first_event(client)).status == 200
            assert s.inside() == streams
            stopping = asyncio.ensure_future(s.app.stop())
            ended = await asyncio.gather(*(rest_of_stream(client) for client in clients))
            assert sum(whole and body.endswith(b"data: [DONE]\n\n") for body, whole in ended) == streams
            await asyncio.wait_for(stopping, 10.0)
            assert s.charged() == [] and s.inside() == 0
            assert await s.app.ledger.audit() == []
            outcomes = s.everything("outcome")
            assert len(outcomes) == streams
            assert {(one["outcome"], one["usage"]["output_tokens"]) for one in outcomes} == {("completed", 300)}

    run("uvloop", steps(), within_s=60.0)

"""What a tenant may ask about itself on the public port: its use, and the story of its own requests (F2, F12)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from app_scene import ENVIRONMENT, Scene, chat, fake_engine, first_event, get, rest_of_stream, run, scene
from http_port import Answer

from headworks.core.policy import ClassPolicy, Policy, TenantPolicy
from headworks.gateway.accounts import Accounts
from headworks.gateway.explanations import WAITING_MAX, Explanations, TooMany, _joined
from headworks.gateway.metrics import Registry
from headworks.gateway.standing import Standing

TENANTS = {
    "acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1, "active_tokens_max": 4_000},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk", "classes": ["bulk", "interactive"]},
}
REFUSES = {"interactive": {"on_tenant_full": "refuse", "slo": {"ttft_s": 20, "tpot_s": None, "e2e_s": None}}}


async def own(s: Scene, path: str, key: str | None = "ACME_KEY") -> Answer:
    fields = [] if key is None else [f"Authorization: Bearer {ENVIRONMENT[key]}"]
    return await s.ask(get(f"/v1/headworks/{path}", *fields))


async def answered(s: Scene, name: str, key: str = "ACME_KEY", tokens: int = 8) -> None:
    assert (await s.ask(chat(f"Idempotency-Key: {name}", key=key, tokens=tokens))).status == 200


def test_F12_usage_has_limits_use_and_how_promises_were_kept() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            await answered(s, "one", tokens=8)
            await answered(s, "two", tokens=12)
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=100))
            await first_event(client)
            assert (await s.ask(chat(key="ACME_KEY"))).status == 429
            answer = await own(s, "usage")
            found = answer.json()
            assert (answer.status, found["tenant"], found["utc"] > found["since"]) == (200, "acme", True)
            assert found["limits"]["active_tokens_max"] == 4_000
            assert found["limits"]["active_requests_max"] == 1
            assert found["use"] == {
                "tokens": s.held("tenant:acme"),
                "requests": 1,
                "queued_requests": 0,
                "queued_tokens": 0,
            }
            assert found["tokens"]["output"] == 20
            interactive = found["classes"]["interactive"]
            # three ended: two good ones, and one that its own limit refused and that breaks no promise
            assert (interactive["arrivals_total"], interactive["completed_total"], interactive["good_total"]) == (3, 2, 2)
            assert (interactive["refused_for_own_limits_total"], interactive["good_ratio"]) == (1, 1.0)
            assert interactive["promises"]["ttft_s"] == 20
            assert len(interactive["ttft_counts"]) == len(found["ttft_bounds_s"]) + 1
            assert sum(interactive["ttft_counts"]) == 2
            await rest_of_stream(client)
            client.close()

    run("uvloop", steps())


def test_A10_who_reserves_too_little_and_who_too_much_is_seen_by_itself_and_by_the_operator() -> None:
    async def steps() -> None:
        pool = {"estimate": {"output_tokens_cold": 32}, "growth": {"step_tokens": 16, "ahead_tokens": 4}}
        engine = fake_engine(natural_tokens=60)
        async with scene(engine, pool=pool, tenants=TENANTS, classes=REFUSES) as s:
            for number in range(2):
                payload = chat(f"Idempotency-Key: {number}", key="ACME_KEY", stream=True, tokens=1_000)
                assert (await s.ask(payload)).status == 200
            await answered(s, "short", "BATCHCO_KEY", tokens=20)
            await s.settled()
            mine, theirs = [(await own(s, "usage", key)).json()["estimates"] for key in ("ACME_KEY", "BATCHCO_KEY")]
            # of 60 the first had 32 to begin with, and the second what the first one came to
            assert mine["models"] == {"tiny": {"answers": 2, "missed": 1, "output_tokens": None}}
            assert (mine["covered_ratio"], theirs["covered_ratio"]) == (0.5, 1.0)
            # how often it grew, and so what it held, is a matter of how fast this machine reads; what was used is not
            held = [one["work"]["tokens"] for one in s.everything("outcome") if one["key"][0] == "acme"]
            assert mine["reserved_over_used_ratio"] == sum(held) / (2 * (6 + 60))
            shown = (await s.admin("/admin/state")).json()["tenants"]["acme"]
            assert shown["covered_ratio"] == 0.5
            assert shown["reserved_over_used_ratio"] == mine["reserved_over_used_ratio"]

    run("uvloop", steps())


def test_F12_a_tenant_sees_itself_and_nobody_else() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            await answered(s, "mine")
            found = (await own(s, "usage", "BATCHCO_KEY")).json()
            assert (found["tenant"], found["use"]["tokens"], found["tokens"]["output"]) == ("batchco", 0, 0)
            assert list(found["classes"]) == ["interactive", "bulk"]
            theirs = found["classes"]["interactive"]
            assert (theirs["arrivals_total"], theirs["good_total"], sum(theirs["ttft_counts"])) == (0, 0, 0)
            assert "acme" not in str(found)

    run("uvloop", steps())


def test_F2_a_tenant_reads_the_story_of_its_own_request() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=60))
            await first_event(client)
            refused = await s.ask(chat("X-Request-Id: mine", "Idempotency-Key: the-key", key="ACME_KEY", tokens=9))
            assert refused.status == 429
            await rest_of_stream(client)
            client.close()
            await answered(s, "the-key", tokens=9)
            await s.settled()
            answer = await own(s, f"explain/{refused.json()['headworks']['decision']}")
            found = answer.json()
            assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
            told = "\n".join(found["story"])
            assert "tenant acme would have 2 sequences running, and may have 1 (tenant_capacity_exceeded)." in told
            assert "It would have been admitted with 1 fewer sequence running for tenant acme, or with a limit of 2" in told
            assert "The key the-key was used again" in told and "its answer was complete" in told
            assert all("execution" not in line["record"] and "gateway" not in line["record"] for line in found["records"])
            for name in ("the-key", "mine"):
                assert (await own(s, f"explain/{name}")).json()["records"] == found["records"]

    run("uvloop", steps())


def test_F2_another_tenants_request_is_not_there() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSES) as s:
            await answered(s, "shared-name")
            await answered(s, "shared-name", key="BATCHCO_KEY")
            await s.settled()
            found = (await own(s, "explain/shared-name", "BATCHCO_KEY")).json()
            assert {line["record"]["key"][0] for line in found["records"]} == {"batchco"}
            (mine,) = {line["record"]["id"] for line in (await own(s, "explain/shared-name")).json()["records"]}
            there, nowhere = await own(s, f"explain/{mine}", "BATCHCO_KEY"), await own(s, "explain/no-such", "BATCHCO_KEY")
            assert (there.status, there.code) == (nowhere.status, nowhere.code) == (404, "not_found")
            assert there.body.replace(mine.encode(), b"?") != b"" and b"acme" not in there.body

    run("uvloop", steps())


@pytest.mark.parametrize("path", ["usage", "explain/x"])
def test_H2_nobody_asks_without_a_key(path: str) -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            answer = await own(s, path, None)
            assert (answer.status, answer.code) == (401, "invalid_api_key")

    run("uvloop", steps())


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "usage", 405), ("GET", "usages", 404), ("GET", "", 404)])
def test_H3_nothing_else_is_there(method: str, path: str, status: int) -> None:
    async def steps() -> None:
        async with scene() as s:
            assert (await s.ask(get(f"/v1/headworks/{path}", "Content-Length: 0", method=method))).status == status

    run("uvloop", steps())


def test_F2_tenants_look_ups_are_counted_and_made_one_at_a_time() -> None:
    """A look-up that hangs keeps a few others waiting, and the rest is told so."""
    go_on, looking = threading.Event(), []

    def find(name: str, tenant: str | None) -> list[Any]:
        looking.append(name)
        assert go_on.wait(10)
        return []

    async def steps() -> None:
        explanations = Explanations(find)
        asked = [asyncio.create_task(explanations.own(f"r{number}", "acme")) for number in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await explanations.own("one-too-many", "acme")
        assert len(looking) <= 1
        go_on.set()
        assert [found["id"] for found in await asyncio.gather(*asked)] == [f"r{number}" for number in range(WAITING_MAX)]
        assert (await explanations.own("later", "acme"))["records"] == []
        explanations.close()

    asyncio.run(steps())


def test_F2_records_by_the_thousand_are_put_together_in_no_time_of_the_loop() -> None:
    """A key that was used over and over stands in the records of each of its requests, and all are found at every step."""

    def lines(begin: int) -> list[Any]:
        records = [{"id": "k1", "key": ["acme", "k1"], "n": number} for number in range(begin, begin + 4_000)]
        return [{"kind": "outcome", "utc": "2026-12-01", "record": record} for record in records]

    begun_s = time.process_time()
    joined = _joined(lines(0), lines(3_000))
    assert time.process_time() - begun_s < 0.2
    assert [line["record"]["n"] for line in joined] == list(range(7_000))


class Registers(Registry):
    """Refuses to be read whole."""

    def counted(self, name: str, first: str | None = None) -> dict[tuple[str, ...], float]:
        assert first is not None, f"{name} of everybody"
        return super().counted(name, first)

    def observed(self, name: str, first: str | None = None) -> dict[tuple[str, ...], list[int]]:
        assert first is not None, f"{name} of everybody"
        return super().observed(name, first)


def test_F12_what_a_tenant_asks_about_itself_costs_nothing_for_the_others() -> None:
    names = [f"tenant-{number}" for number in range(500)]
    registry = Registers(list)
    registry.allow("tenant", names)
    registry.allow("class", ["interactive"])
    registry.allow("model", ["tiny"])
    for count, name in enumerate(names, 1):
        registry.counter("tokens_total", name, "interactive", "tiny", "output").add(count)
        registry.counter("goodput_total", name, "interactive", "tiny").add(count)
        registry.counter("requests_total", name, "interactive", "tiny", "completed", "", "first").add(count)
        registry.histogram("ttft_seconds", name, "interactive", "tiny").observe(0.2)
    asked: list[str | None] = []

    def snapshot(tenant: str | None) -> dict[str, Any]:
        asked.append(tenant)
        return {"tokens": 1, "requests": 2, "queued_requests": 3, "queued_tokens": 4}

    def estimates(tenant: str) -> dict[str, dict[str, int | None]]:
        asked.append(tenant)
        return {}

    policy = Policy("v1", 1, {"interactive": ClassPolicy("interactive")}, {name: TenantPolicy(name) for name in names}, {})
    found = Standing(snapshot, estimates, registry, Accounts(registry), list, lambda: 0.0, lambda: 0.0).own(policy, "tenant-6")
    assert set(asked) == {"tenant-6"}
    assert found["tokens"]["output"] == 7
    assert found["classes"]["interactive"]["good_total"] == found["classes"]["interactive"]["completed_total"] == 7
    assert sum(found["classes"]["interactive"]["ttft_counts"]) == 1


def test_F2_one_look_up_too_many_is_told_how_many_may_wait() -> None:
    go_on = threading.Event()

    def find(name: str, tenant: str | None) -> list[Any]:
        assert go_on.wait(10)
        return []

    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            s.app.explanations._find = find
            asked = [asyncio.create_task(own(s, f"explain/r{number}")) for number in range(WAITING_MAX)]
            await s.until(lambda: s.app.explanations._waiting == WAITING_MAX)
            answer = await own(s, "explain/one-too-many")
            assert (answer.status, answer.code) == (503, "gateway_overloaded")
            assert answer.json()["error"]["message"] == (
                "This gateway itself is overloaded: look-ups that wait is 8, the limit is 8."
            )
            assert (answer.fields["retry-after"], answer.fields["x-overload-reason"]) == ("1", "gateway_overloaded")
            go_on.set()
            assert {answer.status for answer in await asyncio.gather(*asked)} == {404}

    run("uvloop", steps())

"""Money in a whole gateway: what engines cost, by the journal, by the metric, and as it is shown on both ports (F7, F12)."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from typing import Any

import pytest
from app_scene import ENVIRONMENT, Scene, chat, get, run, scene

from headworks.gateway.statement import Statement

TENANTS = {
    "acme": {"keys": ["env:ACME_KEY"]},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk", "classes": ["bulk", "interactive"]},
}
PRICED = {"gpu_price_per_h": 5.12, "gpus": 100}
"""$512 an hour: a dollar in seven seconds, so that a test has some cents to add up."""
PER_MS = 512_000_000_000 // 3_600_000
ADMIN = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}


def counted(s: Scene) -> dict[tuple[str, str], float]:
    text = s.app.registry.render().decode()
    found = re.findall(r'headworks_cost_total\{tenant="(\w+)",kind="(\w+)"\} (\S+)', text)
    return {(tenant, kind): float(value) for tenant, kind, value in found}


def stated(s: Scene) -> Statement:
    found = s.app.cost_desk.of("")
    assert found.differences() == [] and found.unread == 0
    return found


async def cut(s: Scene, key: str, tokens: int) -> None:
    """A client that leaves in the middle of its answer."""
    client = await s.connect()
    client.send(chat(key=key, tokens=tokens, stream=True))
    await client.reader.readuntil(b"data: ")
    client.close()
    await s.settled()


def test_F7_the_metric_is_the_statement_to_the_cent_and_both_are_the_journal() -> None:
    async def steps() -> None:
        async with scene(pool=PRICED, tenants=TENANTS) as s:
            s.app.registry.render()
            answers = [s.ask(chat(key=key, tokens=40)) for key in ("ACME_KEY", "BATCHCO_KEY") for _ in range(4)]
            assert {one.status for one in await asyncio.gather(*answers)} == {200}
            await cut(s, "ACME_KEY", 400)
            metric, found = counted(s), stated(s)
            by_tenant = {about[0]: row for about, row in found.rows.items()}
            assert by_tenant["acme"].executions == 5 and by_tenant["batchco"].executions == 4
            for (tenant, kind), money in metric.items():
                said = getattr(by_tenant[tenant], f"{kind}_nanomoney")
                assert money == pytest.approx(said / 1e9, abs=0.005 if kind != "avoided" else 0.05), (tenant, kind)
            assert metric.keys() >= {("acme", "used"), ("acme", "wasted"), ("batchco", "used")}
            assert by_tenant["acme"].wasted_nanomoney > 0 == by_tenant["batchco"].wasted_nanomoney
            assert metric["acme", "avoided"] > 0, "it had reserved more than it came to write"

    run("uvloop", steps())


def test_F7_a_reload_changes_the_price_from_then_on() -> None:
    async def steps() -> None:
        async with scene(pool=PRICED, tenants=TENANTS) as s:
            assert (await s.ask(chat(key="ACME_KEY", tokens=40))).status == 200
            before = stated(s).total.used_nanomoney
            await s.reload(s.text(pools={"llama": {"gpus": 1}}))
            assert (await s.ask(chat(key="ACME_KEY", tokens=40))).status == 200
            found = stated(s)
            assert before > 40 * 4 * PER_MS * 0.9
            assert 0 < found.total.used_nanomoney - before < before / 20
            assert counted(s)["acme", "used"] == pytest.approx(found.total.used_nanomoney / 1e9, abs=0.005)

    run("uvloop", steps())


def test_F7_without_a_price_nothing_costs_and_no_metric_is_shown() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            assert counted(s) == {}
            found = stated(s)
            assert (found.pools, found.total.executions, found.total.cost_nanomoney) == ({}, 1, 0)

    run("uvloop", steps())


def test_F7_what_was_refused_since_it_would_be_late_is_avoided() -> None:
    async def steps() -> None:
        classes = {"interactive": {"slo": {"ttft_s": 0.05}, "queue": {"wait_s_max": 0.05}}}
        async with scene(pool=PRICED | {"active_requests_max": 1}, tenants=TENANTS, classes=classes) as s:
            assert (await s.ask(chat(key="ACME_KEY", tokens=8))).status == 200
            answers = await asyncio.gather(*[s.ask(chat(key="ACME_KEY", tokens=100)) for _ in range(8)])
            refused = [one.json()["error"]["code"] for one in answers if one.status == 429]
            late = sum(code in ("queue_delay_exceeded", "queue_timeout") for code in refused)
            assert late > 0, refused
            await s.settled()
            assert counted(s)["acme", "avoided"] > 0
            assert s.app.usage is not None
            s.app.usage._avoided.is_due = True
            assert stated(s).total.avoided_requests == late
            assert stated(s).total.avoided_nanomoney > 0

    run("uvloop", steps())


def test_F7_the_admin_port_has_it_as_values_csv_and_a_page() -> None:
    async def steps() -> None:
        async with scene(pool=PRICED, tenants=TENANTS, server={"admin_key": "env:ADMIN"}) as s:
            assert (await s.ask(chat(key="ACME_KEY", tokens=40))).status == 200
            assert (await s.admin("/admin/cost")).status_code == 401
            values: dict[str, Any] = (await s.admin("/admin/cost?by=tenant,client", **ADMIN)).json()
            (row,) = values["rows"]
            assert (row["tenant"], row["client"], row["executions"]) == ("acme", "acme/ACME_KEY", 1)
            assert values["differences"] == [] and row["cost_nanomoney"] > 0
            day = time.strftime("%Y-%m-%d", time.gmtime())
            table = await s.admin(f"/admin/cost?period={day}&by=pool&format=csv", **ADMIN)
            lines = list(csv.DictReader(io.StringIO(table.text)))
            assert [line["pool"] for line in lines] == ["llama", "llama"]
            page = await s.admin("/admin/cost?format=html", **ADMIN)
            assert page.headers["content-type"].startswith("text/html") and "<td>acme</td>" in page.text
            for wrong in ("period=yesterday", "by=colour", "format=xml"):
                assert (await s.admin(f"/admin/cost?{wrong}", **ADMIN)).status_code == 400

    run("uvloop", steps())


def test_F12_a_tenant_asks_what_it_was_billed_and_caused_and_sees_nobody_else() -> None:
    async def steps() -> None:
        prices = {"tiny": {"price_per_mtoken": {"prompt": 100, "output": 400}}}
        async with scene(pool=PRICED, tenants=TENANTS, models=prices) as s:
            for key in ("ACME_KEY", "BATCHCO_KEY"):
                assert (await s.ask(chat(key=key, tokens=40))).status == 200
            month = time.strftime("%Y-%m", time.gmtime())
            for path in ("/v1/headworks/cost", f"/v1/headworks/cost/{month}"):
                answer = await s.ask(get(path, f"Authorization: Bearer {ENVIRONMENT['ACME_KEY']}"))
                found = answer.json()
                assert (answer.status, found["tenant"], len(found["rows"])) == (200, "acme", 1)
                assert found.keys() == {"tenant", "begins", "ends", "rows"}
                (row,) = found["rows"]
                assert (row["client"], row["model"], row["output_tokens"]) == ("acme/ACME_KEY", "tiny", 40)
                assert row["billed_nanomoney"] == row["prompt_tokens"] * 100_000 + 40 * 400_000
            wrong = get("/v1/headworks/cost/2026-13", f"Authorization: Bearer {ENVIRONMENT['ACME_KEY']}")
            assert (await s.ask(wrong)).status == 404
            assert (await s.ask(get("/v1/headworks/cost"))).status == 401

    run("uvloop", steps())


def test_F7_where_no_journal_is_kept_there_is_no_statement() -> None:
    async def steps() -> None:
        async with scene(pool=PRICED, tenants=TENANTS, usage={"path": None}) as s:
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            assert (await s.admin("/admin/cost")).status_code == 404
            assert counted(s)["acme", "used"] > 0, "the metric needs none"

    run("uvloop", steps())

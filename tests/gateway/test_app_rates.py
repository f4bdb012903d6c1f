"""Rates, quotas and retry budgets over HTTP: the code, the numbers, the hints, the headers, the metrics (A2, B5, B15)."""

from __future__ import annotations

import asyncio
import errno
import glob
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from app_scene import PATIENT, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene
from test_app_refusals import holds_together, let_end, occupy

from headworks.gateway import clock


def tenants(**limits: Any) -> dict[str, Any]:
    return {"acme": {"keys": ["env:ACME_KEY"], **limits}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}


async def metric(s: Scene, name: str, *parts: str) -> float:
    """The sum of a metric's series whose line has all these parts."""
    text = (await s.admin("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(f"headworks_{name}{{") and all(p in line for p in parts)]
    return math.fsum(float(line.rpartition(" ")[2]) for line in lines)


def test_B5_a_tenant_over_its_rate_is_told_when_it_has_refilled_and_comes_back_then() -> None:
    async def steps() -> None:
        engine = fake_engine()
        rate = {"requests_per_s": 0.25, "burst_requests": 2}  # however slow these three are, nothing comes in between
        async with scene(engine, tenants=tenants(rate=rate)) as s:
            for left in ("1", "0"):
                answer = await s.ask(chat(key="ACME_KEY", tokens=2))
                assert (answer.status, answer.fields["x-ratelimit-remaining-requests"]) == (200, left)
                assert answer.fields["x-ratelimit-limit-requests"] == "2"
            requests = engine.requests
            answer = await s.ask(chat("Idempotency-Key: over", key="ACME_KEY", tokens=2))
            holds_together(answer, "rate_limit_exceeded")
            assert answer.json()["error"]["message"].startswith(
                "Your rate allows 2 requests at once; this request would make it"
            )
            assert 1 <= int(answer.fields["retry-after-ms"]) <= 4_000
            assert engine.requests == requests
            assert (await s.ask(chat(key="BATCHCO_KEY", tokens=2))).status == 200
            await asyncio.sleep(int(answer.fields["retry-after-ms"]) / 1000)
            assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            (decision,) = [one for one in s.records("over") if one["kind"] == "decision"]
            failed = [one for one in decision["verdicts"] if not one["passed"]]
            assert [(one["scope"], one["unit"], one["limit"]) for one in failed] == [("tenant:acme", "requests at once", 2)]
            assert await metric(s, "verdict_failures_total", 'check="tenant"', 'scope="tenant"') == 1
            assert await metric(s, "refused_total", 'client="acme/ACME_KEY"', 'reason="rate_limit_exceeded"') == 1

    run("uvloop", steps())


def test_B5_who_goes_on_asking_over_his_rate_is_refused_unread_and_written_down_as_any_other() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, tenants=tenants(rate={"requests_per_s": 2, "burst_requests": 2})) as s:
            for _ in range(2):
                assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            assert (await s.ask(chat("X-Request-Id: read", key="ACME_KEY", tokens=2))).status == 429
            engine_requests, wrong = engine.requests, chat("X-Request-Id: unread", key="ACME_KEY", tokens=2, messages="none")
            answer = await s.ask(wrong)
            holds_together(answer, "rate_limit_exceeded")
            assert answer.fields["x-request-id"] == "unread", "what is wrong in its body nobody has looked at"
            assert answer.json()["headworks"]["forecast"]["basis"] == "unread"
            assert (await s.ask(chat("X-Request-Id: nowhere", key="ACME_KEY", model="none"))).status == 404
            assert engine.requests == engine_requests
            assert (await s.ask(chat(key="BATCHCO_KEY", tokens=2))).status == 200, "of others nothing is refused"
            for name in ("read", "unread"):
                (named,) = s.records(name)
                kinds = [(one["kind"], one.get("outcome")) for one in s.records(named["id"])]
                assert kinds == [("name", None), ("decision", "refuse"), ("outcome", "refused")]
            assert await metric(s, "refused_total", 'client="acme/ACME_KEY"', 'reason="rate_limit_exceeded"') == 2
            assert await metric(s, "requests_total", 'tenant="acme"', 'outcome="refused"') == 2
            await asyncio.sleep(int(answer.fields["retry-after-ms"]) / 1000)
            assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            assert (await s.ask(wrong)).status == 400, "he is read again"

    run("uvloop", steps())


def test_A10_tokens_are_drawn_by_estimate_and_corrected_by_what_was_used() -> None:
    async def steps() -> None:
        rate = {"tokens_per_s": 0.001, "burst_tokens": 1000, "debt_tokens_max": 100}
        async with scene(tenants=tenants(rate=rate)) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=100))
            head = await first_event(running)
            left = int(head.fields["x-ratelimit-remaining-tokens"])
            assert head.fields["x-ratelimit-limit-tokens"] == "1000"
            await let_end(running)
            await s.settled()
            answer = await s.ask(chat("Idempotency-Key: k", key="ACME_KEY", tokens=20))
            assert answer.status == 200
            used = answer.json()["usage"]["total_tokens"]
            await s.until(lambda: any(one["kind"] == "outcome" for one in s.records("k")))
            answer = await s.ask(chat(key="ACME_KEY", tokens=1))
            after = int(answer.fields["x-ratelimit-remaining-tokens"])
            assert used < 100 < 1000 - left, "the estimate is more than what was used"
            first_used = 100 + used - 20  # the same prompt, and a hundred tokens
            estimate = 1000 - left - 100 + 1  # and of the last, still drawn: its prompt's estimate and one token
            assert after == 1000 - first_used - used - estimate
            reset_s = answer.fields["x-ratelimit-reset-tokens"]
            assert reset_s.endswith("s") and "h" in reset_s

    run("uvloop", steps())


def test_B5_more_than_a_minute_away_is_not_waited_for() -> None:
    async def steps() -> None:
        rate = {"requests_per_s": 0.01, "burst_requests": 1}
        async with scene(tenants=tenants(client_rate=rate)) as s:
            assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            answer = await s.ask(chat(key="ACME_KEY", tokens=2))
            assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
            assert answer.fields["x-should-retry"] == "false"
            assert answer.fields["retry-after"] == "60"
            scopes = [one["scope"] for one in answer.json()["headworks"]["verdicts"] if not one["passed"]]
            assert scopes == ["client:acme/ACME_KEY"]

    run("uvloop", steps())


def test_B15_retries_beyond_the_budget_are_refused_and_counted_apart() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(client_rate={"retry_ratio": 0.1})) as s:
            retry = chat("x-stainless-retry-count: 1", key="ACME_KEY", tokens=2)
            answers = [await s.ask(retry) for _ in range(4)]
            assert [answer.status for answer in answers] == [200, 200, 200, 429]
            holds_together(answers[3], "retry_budget_exceeded")
            told = "This client would have made 4 retries in a minute; 3 are allowed."
            assert answers[3].json()["error"]["message"] == told
            assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            client = 'client="acme/ACME_KEY"'
            assert await metric(s, "retries_total", client, 'kind="early"') == 3
            assert await metric(s, "retries_total", client, 'kind="over_budget"') == 1
            assert await metric(s, "requests_total", 'attempt="retry"') == 4

    run("uvloop", steps())


def test_B15_a_return_on_its_slot_is_honoured() -> None:
    async def steps() -> None:
        limits = {"rate": {"requests_per_s": 4, "burst_requests": 4}, "client_rate": {"retry_ratio": 0.0}}
        async with scene(tenants=tenants(**limits)) as s:
            spent = chat("x-stainless-retry-count: 1", key="ACME_KEY", tokens=2)
            assert [(await s.ask(spent)).status for _ in range(3)] == [200, 200, 200]
            answers = [await s.ask(chat(key="ACME_KEY", tokens=2)) for _ in range(3)]
            refused = next(answer for answer in answers if answer.status == 429)
            assert refused.code == "rate_limit_exceeded"
            await asyncio.sleep(int(refused.fields["retry-after-ms"]) / 1000)
            assert (await s.ask(chat("x-stainless-retry-count: 1", key="ACME_KEY", tokens=2))).status == 200
            assert await metric(s, "retries_total", 'kind="ticket_kept"') == 1

    run("uvloop", steps())


def test_A2_a_quota_that_is_used_up_says_so_until_its_period_ends_also_after_a_restart() -> None:
    async def steps() -> None:
        quota = {"period": "month", "tokens": 120}
        engine = fake_engine()
        async with scene(engine, tenants=tenants(quota=quota)) as s:
            first = await s.ask(chat(key="ACME_KEY", tokens=40))
            assert first.status == 200
            used = first.json()["usage"]["total_tokens"]
            await s.settled()
            shown = s.app.snapshot()["tenants"]["acme"]["quota"]
            assert (shown["tokens_committed"], shown["tokens_outstanding"]) == (used, 0)
            assert await metric(s, "quota_used_ratio", 'tenant="acme"', 'unit="tokens"') == used / 120
            requests = engine.requests
            answer = await s.ask(chat(key="ACME_KEY", tokens=60))
            assert (answer.status, answer.code) == (429, "insufficient_quota")
            assert answer.json()["error"]["type"] == "insufficient_quota"
            assert answer.fields["x-should-retry"] == "false" and "retry-after" not in answer.fields
            assert int(answer.fields["x-ratelimit-reset"]) > 1_700_000_000
            assert engine.requests == requests
            assert (await s.ask(chat(key="BATCHCO_KEY", tokens=60))).status == 200
            await s.settled()
            await s.restart()
            shown = s.app.snapshot()["tenants"]["acme"]["quota"]
            assert shown["tokens_committed"] == used
            assert (await s.ask(chat(key="ACME_KEY", tokens=60))).code == "insufficient_quota"

    run("uvloop", steps())


def test_A2_a_reload_with_another_period_counts_what_the_journal_has_of_it() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(quota={"period": "hour", "tokens": 100_000})) as s:
            used = (await s.ask(chat(key="ACME_KEY", tokens=40))).json()["usage"]["total_tokens"]
            await s.settled()
            await s.reload(s.text(tenants={"acme": {"quota": {"period": "month", "tokens": 90}}}))
            quota = s.app.snapshot()["tenants"]["acme"]["quota"]
            assert (quota["period"][:6], quota["tokens_committed"]) == ("month-", used)
            assert (await s.ask(chat(key="ACME_KEY", tokens=60))).code == "insufficient_quota"

    run("uvloop", steps())


def opened(fifo: Path) -> list[int]:
    """It for writing, if somebody reads it."""
    try:
        return [os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)]
    except OSError as error:
        assert error.errno == errno.ENXIO
        return []


def test_A2_a_reload_reads_the_files_of_others_beside_the_loop_and_changes_everything_after_it() -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(quota={"period": "day", "tokens": 100_000})) as s:
            assert s.app.usage is not None
            slow = Path(s.app.settings.usage.directory or "") / f"usage-{time.strftime('%Y%m%d')}T000000-1-000.jsonl"
            os.mkfifo(slow)  # opening it to read waits for somebody who writes, and reading it for the end of that
            before = s.app.policy.version
            reloading, writing = (
                asyncio.ensure_future(s.reload(s.text(tenants={"acme": {"quota": {"tokens": 90}}}))),
                list[int](),
            )
            await s.until(lambda: writing or writing.extend(opened(slow)))
            assert (await s.ask(chat(key="ACME_KEY", tokens=100))).status == 200, "by the policy of before"
            assert s.app.policy.version == before
            os.close(writing[0])
            await reloading
            slow.unlink()
            assert s.app.policy.version != before
            assert (await s.ask(chat(key="ACME_KEY", tokens=60))).code == "insufficient_quota"

    run("uvloop", steps())


def test_A2_setting_the_clock_moves_no_period(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps() -> None:
        async with scene(tenants=tenants(quota={"period": "day", "tokens": 100_000})) as s:
            used = (await s.ask(chat(key="ACME_KEY", tokens=40))).json()["usage"]["total_tokens"]
            await s.settled()
            before = s.app.snapshot()["tenants"]["acme"]["quota"]
            real = clock.utc_s
            for days in (1, 400, -400):
                monkeypatch.setattr(clock, "utc_s", lambda days=days: real() + days * 86_400)
                quota = s.app.snapshot()["tenants"]["acme"]["quota"]
                assert (quota["period"], quota["tokens_committed"]) == (before["period"], used)
            monkeypatch.setattr(clock, "utc_s", real)
            await s.restart()
            assert s.app.snapshot()["tenants"]["acme"]["quota"]["tokens_committed"] == used

    run("uvloop", steps())


def test_A2_a_full_tenant_waits_where_its_class_waits() -> None:
    """`on_tenant_full: queue`: it is served when the tenant's own work has ended, and told so where that takes too long."""

    async def steps() -> None:
        async with scene(tenants=tenants(active_requests_max=1), classes=PATIENT) as s:
            running = await occupy(s, 60, "ACME_KEY")
            waiting = asyncio.ensure_future(s.ask(chat("Idempotency-Key: w", key="ACME_KEY", tokens=4)))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            assert (await rest_of_stream(running))[1]
            running.close()
            answer = await waiting
            assert answer.status == 200 and float(answer.fields["queue-wait"]) > 0
            decisions = [one for one in s.records("w") if one["kind"] == "decision"]
            assert [one["outcome"] for one in decisions] == ["queue", "admit"]
            assert decisions[0]["reason"] == "tenant_capacity_exceeded"

    run("uvloop", steps())


def test_A2_after_waiting_the_answer_names_the_tenants_own_limit() -> None:
    async def steps() -> None:
        classes = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 0.1}}}
        async with scene(tenants=tenants(active_requests_max=1), classes=classes) as s:
            running = await occupy(s, 100, "ACME_KEY")
            answer = await s.ask(chat(key="ACME_KEY", tokens=4))
            holds_together(answer, "tenant_capacity_exceeded")
            assert (await s.ask(chat(key="BATCHCO_KEY", tokens=4))).status == 200
            await let_end(running)

    run("uvloop", steps())


def test_F7_a_reload_changes_the_price_of_what_ends_from_then_on() -> None:
    async def steps() -> None:
        prices = {"tiny": {"price_per_mtoken": {"prompt": 0, "cached": 0, "output": 1}}}
        async with scene(models=prices) as s:
            await s.ask(chat(tokens=10))
            await s.settled()
            await s.reload(s.text(models={"tiny": {"price_per_mtoken": {"output": 3}}}))
            await s.ask(chat(tokens=10))
            await s.settled()
            assert s.app.usage is not None
            s.app.usage.flush()
            (path,) = glob.glob(f"{s.texts['usage']['path']}/*.jsonl")
            with open(path) as file:  # noqa: ASYNC230
                bills = [json.loads(line) for line in file]
            assert [bill["billed_nanomoney"] for bill in bills] == [10_000, 30_000]
            assert bills[0]["price_version"] != bills[1]["price_version"]

    run("uvloop", steps())

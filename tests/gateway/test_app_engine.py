"""Engines that die, restart, are busy, answer nonsense or stand still: what their clients get and what stays charged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, completion, fake_engine, first_event, rest_of_stream, run, scene

both_loops = pytest.mark.parametrize("loop", LOOPS)
LONG = 1500


@both_loops
def test_I34_a_stream_whose_engine_dies_ends_with_an_error_and_broken(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=LONG))
            await first_event(client)
            await s.until(lambda: s.charged()[0].incarnation > 0)  # a sample has shown where it runs
            engine.restart(down_s=0.3)
            body, ended = await rest_of_stream(client)
            assert not ended, "a cut stream must not look whole"
            last = body.split(b"\n\n")[-2]
            assert b'"code":"upstream_lost"' in last
            assert b"[DONE]" not in body
            assert len(s.charged()) == 1, "a broken connection is no proof that it stopped"
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["reason"]) == ("failed", "upstream_lost")
            assert outcome["evidence"] == "E4", "a new incarnation ends what ran in the old one"
            client.close()
            await s.until(lambda: s.app.obstacles() == [])
            assert (await s.ask(chat())).status == 200

    run(loop, steps())


@both_loops
def test_B15_an_answer_in_one_piece_whose_engine_dies_is_sent_again_when_its_next_life_proves_it_gone(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT, ledger={"lease_s": 2}) as s:
            asking = asyncio.ensure_future(s.ask(completion("Idempotency-Key: k1", tokens=200)))
            await s.until(lambda: s.inside() == 1)
            (first,) = [record.execution for record in s.charged()]
            engine.restart(down_s=0.2)
            answer = await asking
            assert (answer.status, answer.json()["usage"]["completion_tokens"]) == (200, 200)
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["execution"] == first) == ("completed", False)
            pool = s.app.snapshot()["pools"]["llama"]
            assert (pool["upstream_sent"], pool["upstream_retried"]) == (2, 1)

    run(loop, steps())


@both_loops
def test_K16_an_answer_in_one_piece_whose_engine_dies_for_longer_is_502(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT, ledger={"lease_s": 2}) as s:
            asking = asyncio.ensure_future(s.ask(completion("Idempotency-Key: k1", tokens=LONG)))
            await s.until(lambda: s.inside() == 1)
            engine.restart(down_s=4.0)
            answer = await asking
            assert (answer.status, answer.code) == (502, "upstream_lost")
            assert "retry-after" not in answer.fields
            assert len(s.charged()) == 1, "told after a lease and a second, and charged until there is proof"
            await s.until(lambda: not s.charged(), 15.0)
            await s.settled()
            assert s.outcome("k1")["outcome"] == "failed"

    run(loop, steps())


@pytest.mark.parametrize("kind", ["error", "break", "garbage"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_K16_an_answer_that_goes_wrong_in_the_middle_is_settled(kind: str, stream: bool) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT, ledger={"lease_s": 2}) as s:
            engine.fault(
                kind, after_tokens=5, times=2 if kind == "garbage" or not stream else 1
            )  # what is unheard is tried twice
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=stream, tokens=40))
            if stream and kind != "garbage":  # which comes in the place of a head
                await first_event(client)
                body, ended = await rest_of_stream(client)
                assert not ended
                assert b'"code":"upstream_lost"' in body
            else:
                answer = await client.answer()
                assert (answer.status, answer.code) == (502, "upstream_lost")
            client.close()
            await s.until(lambda: not s.charged(), 15.0)
            await s.settled()
            outcome = s.outcome("k1")
            assert outcome["outcome"] == "failed"
            assert outcome["evidence"] in ("E1", "E3a", "E3b")
            engine.heal()
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())


@pytest.mark.parametrize("kind", ["break", "garbage"])
def test_B15_an_answer_that_breaks_off_unheard_is_sent_again_when_counting_proves_that_it_stopped(kind: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT, ledger={"lease_s": 2}) as s:
            engine.fault(kind, after_tokens=5)
            answer = await s.ask(chat("Idempotency-Key: k1", tokens=40))
            assert (answer.status, answer.json()["usage"]["completion_tokens"]) == (200, 40)
            await s.settled()
            assert s.outcome("k1")["outcome"] == "completed"
            assert s.app.snapshot()["pools"]["llama"]["upstream_retried"] == 1

    run("uvloop", steps())


@pytest.mark.parametrize("inside", [False, True])
def test_K02_a_busy_engine_is_overload_and_no_failure(inside: bool) -> None:
    """Whether it refuses by status, or a stream by its first event."""

    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT) as s:
            engine.faults.busy_times, engine.faults.busy_inside = 2, inside
            answer = await s.ask(chat("Idempotency-Key: k1", stream=inside))
            assert answer.status == 200, "it went back to its place and was sent again"
            assert engine.counters.busy == 2
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["evidence"]) == ("completed", "E1")
            assert s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]["state"] == "ready"

    run("uvloop", steps())


def test_K02_an_engine_that_stays_busy_is_429_in_time() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes={"interactive": {"queue": {"wait_s_max": 0.3}}}) as s:
            engine.faults.busy_times = -1
            answer = await s.ask(chat("Idempotency-Key: k1"))
            assert (answer.status, answer.code) == (429, "queue_timeout")
            assert int(answer.fields["retry-after-ms"]) >= 1
            engine.heal()
            await s.settled()
            assert s.outcome("k1")["outcome"] == "refused", "it has been tried again as often as the budget allows"

    run("uvloop", steps())


def test_E4_the_engines_own_refusal_of_a_request_passes() -> None:
    async def steps() -> None:
        async with scene() as s:
            answer = await s.ask(completion("Idempotency-Key: k1", prompt=[1_000_000]))
            assert answer.status == 400
            assert "vocabulary" in answer.json()["error"]["message"]
            await s.settled()
            assert s.outcome("k1")["evidence"] == "E1"

    run("uvloop", steps())


@both_loops
def test_E3_an_engine_that_hangs_is_504_and_its_work_stays_charged(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        classes = {"interactive": {"timeouts": {"first_byte_s": 0.3, "idle_s": 0.5}}}
        async with scene(engine, classes=classes) as s:
            engine.hang()
            answer = await s.ask(chat("Idempotency-Key: k1", stream=True, tokens=20))
            assert (answer.status, answer.code) == (504, "upstream_timeout")
            assert int(answer.fields["retry-after"]) >= 1
            await asyncio.sleep(0.2)
            assert [record.state for record in s.charged()] == ["CANCELLING"]
            engine.resume()
            other = await s.connect()
            other.send(chat(stream=True, tokens=60))
            await s.until(lambda: len(s.charged()) == 1 and s.charged()[0].state != "CANCELLING")
            await other.answer()
            other.close()
            assert s.outcome("k1")["reason"] == "upstream_timeout"

    run(loop, steps())


def test_E3_silence_between_two_pieces_breaks_the_stream() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes={"interactive": {"timeouts": {"idle_s": 0.3}}}) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=LONG))
            await first_event(client)
            engine.hang()
            body, ended = await rest_of_stream(client)
            assert not ended
            assert b'"code":"upstream_timeout"' in body
            engine.resume()
            client.close()
            await s.settled()
            assert (s.outcome("k1")["outcome"], s.outcome("k1")["evidence"]) == ("failed", "E3a")

    run("uvloop", steps())


def test_D4_two_engines_share_the_work_and_one_carries_on_alone() -> None:
    async def steps() -> None:
        first, second = fake_engine(), fake_engine()
        async with scene(first, second, classes=PATIENT) as s:
            answers = [await one for one in [asyncio.ensure_future(s.ask(chat(tokens=30))) for _ in range(8)]]
            assert [answer.status for answer in answers] == [200] * 8
            assert first.requests == second.requests == 4
            first.die()
            await asyncio.sleep(0.05)
            for _ in range(6):
                assert (await s.ask(chat())).status == 200
            assert second.requests == 10
            first.restart()
            await s.until(lambda: first.counters.started_s > 0 and ready(s, "llama/0"))
            answers = [await one for one in [asyncio.ensure_future(s.ask(chat(tokens=30))) for _ in range(8)]]
            assert [answer.status for answer in answers] == [200] * 8
            assert first.requests > 4

    run("uvloop", steps())


def ready(s: Scene, replica: str) -> Any:
    state = s.app.snapshot()["pools"]["llama"]["replicas"][replica]
    return state["state"] == "ready" and state["sample_age_s"] < 0.3


def test_K33_a_metric_that_is_missing_is_not_zero() -> None:
    async def steps() -> None:
        engine = fake_engine()
        engine.faults.dropped_series |= {"vllm:kv_cache_usage_perc", "vllm:num_requests_running"}
        async with scene(engine) as s:
            replica = s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]
            assert (replica["running"], replica["kv_used_ratio"]) == (None, None)
            answer = await s.ask(chat())
            assert answer.status == 200
            page = (await s.admin("/metrics")).text
            assert "headworks_replica_running" not in page.replace("# HELP headworks_replica_running", "").replace(
                "# TYPE headworks_replica_running", ""
            )

    run("uvloop", steps())


def test_B3_memory_in_use_above_the_gate_makes_work_wait() -> None:
    """The gate looks at the engine's own gauge, whoever fills it."""

    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool={"kv_ratio_max": 0.1}, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=1000))
            await first_event(client)
            await s.until(lambda: (s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]["kv_used_ratio"] or 0) > 0.1)
            asking = asyncio.ensure_future(s.ask(chat("Idempotency-Key: k1")))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            (decision,) = s.records("k1")
            assert [verdict["reason"] for verdict in decision["verdicts"] if not verdict["passed"]] == ["kv_saturation"]
            client.close()
            assert (await asking).status == 200

    run("uvloop", steps())


def test_B2_one_slow_first_answer_does_not_close_the_door() -> None:
    """Engines warm up with their first request: what it took must be forgotten, as nobody else can correct it."""

    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            engine.slow(300.0)  # a first token after more than a second
            assert (await s.ask(chat(stream=True, tokens=2))).status == 200
            engine.slow(1.0)
            refused = await s.ask(chat())
            assert (refused.status, refused.code) == (429, "queue_delay_exceeded")
            for _ in range(50):
                if (await s.ask(chat())).status == 200:
                    break
                await asyncio.sleep(0.1)
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())

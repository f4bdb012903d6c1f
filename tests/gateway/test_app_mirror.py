"""Copies of requests to a second pool (F3), through a whole gateway and two fake engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from app_scene import PATIENT, Scene, call, chat, fake_engine, first_event, run, scene

from headworks.config.build import policy as policy_of
from headworks.core.policy import MIRROR
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.table import DIALECTS
from headworks.testing.fake_engine import FakeEngine
from headworks.tools.decision_log import lives
from headworks.tools.observed import observed

PRICE = {"price_per_mtoken": {"prompt": 10.0, "output": 20.0}}


@contextlib.asynccontextmanager
async def mirrored(
    first: FakeEngine, second: FakeEngine, ratio: float = 1.0, settle: bool = True, places: int = 8, **sections: Any
) -> AsyncIterator[Scene]:
    """A gateway whose pool `llama` is copied to the pool `shadow`, which the second engine serves."""
    await second.start()
    try:
        looks = {"every_s": 0.1, "unconfirmed_every_s": 0.02}
        shadow = {"replicas": [{"url": second.url, "engine": "vllm"}], "observe": looks, "active_requests_max": places}
        pools = {"llama": {"mirror": {"pool": "shadow", "ratio": ratio}}, "shadow": shadow}
        async with scene(first, pools=pools, settle=settle, **sections) as s:
            s.engines.append(second)
            yield s
            s.engines.remove(second)
    finally:
        await second.stop()


def copies(s: Scene) -> list[dict[str, Any]]:
    return s.everything("copy")


def outcomes(s: Scene, tenant: str) -> list[dict[str, Any]]:
    return [one for one in s.everything("outcome") if one["key"][0] == tenant]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_F3_a_copy_runs_in_the_second_pool_and_its_answer_goes_nowhere(loop: str) -> None:
    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine(model_name="other"), models={"tiny": PRICE, "other": PRICE}) as s:
            whole = await s.ask(chat("Idempotency-Key: whole", tokens=6))
            streamed = await s.ask(chat("Idempotency-Key: streamed", tokens=9, stream=True))
            assert (whole.status, streamed.status) == (200, 200)
            assert whole.json()["model"] == "tiny"
            await s.settled()
            await s.until(lambda: len(outcomes(s, MIRROR)) == 2)
            told = {one["key"][1]: one for one in copies(s)}
            assert [(one["pool"], one["left_out"]) for one in told.values()] == [("shadow", "")] * 2
            for key, tokens in (("whole", 6), ("streamed", 9)):
                copy = s.outcome(told[key]["copy"])
                assert (copy["outcome"], copy["pool"], copy["model"]) == ("completed", "shadow", "other")
                assert copy["usage"]["output_tokens"] == tokens
            assert s.app.mirrors.shown()["llama"] == {
                "to": "shadow", "ratio": 1.0, "copied_total": 2, "left_out_total": {}, "inside": 0
            }  # fmt: skip

    run(loop, steps())


def test_F3_copies_are_billed_to_nobody_and_are_no_requests_in_the_metrics() -> None:
    async def steps() -> None:
        priced = {"gpu_price_per_h": 512.0}
        async with mirrored(fake_engine(), fake_engine(), models={"tiny": PRICE}, pool=priced) as s:
            for _ in range(3):
                assert (await s.ask(chat(tokens=8))).status == 200
            await s.settled()
            await s.until(lambda: len(outcomes(s, MIRROR)) == 3)
            stated = s.app.cost_desk.of("")
            assert stated.differences() == [] and stated.unread == 0
            rows = {about[0]: row for about, row in stated.rows.items()}
            assert (rows["anonymous"].executions, rows[MIRROR].executions) == (3, 3)
            assert rows["anonymous"].billed_nanomoney > 0 and rows[MIRROR].billed_nanomoney == 0
            text = s.app.registry.render().decode()
            assert 'headworks_upstream_attempts_total{replica="shadow/0",outcome="completed"} 3' in text
            assert [line for line in text.splitlines() if "requests_total{" in line and MIRROR in line] == []

    run("uvloop", steps())


def test_F3_what_is_refused_is_copied_too_and_the_log_says_whose_the_copy_is() -> None:
    async def steps() -> None:
        refusing = {"interactive": {"queue": {"requests_max": 1, "wait_s_max": 0.05}}}
        async with mirrored(fake_engine(), fake_engine(), classes=refusing, pool={"active_requests_max": 1}) as s:
            answers = [s.ask(chat(f"Idempotency-Key: k{number}", tokens=60)) for number in range(4)]
            statuses = [answer.status for answer in await asyncio.gather(*answers)]
            assert statuses.count(429) >= 2
            await s.settled()
            told = {one["key"][1]: one["copy"] for one in copies(s)}
            refused = [f"k{number}" for number, status in enumerate(statuses) if status == 429]
            assert {s.outcome(told[key])["outcome"] for key in refused} == {"completed"}
            story = (await s.app.explanations.of(refused[0]))["story"]
            assert story[-1] == f"A copy of it went to pool shadow, as request {told[refused[0]]}."
            assert s.app.log is not None
            (shadow,) = observed(lives(s.app.log.directory), 0.01, tries=False)["copies"]
            assert (shadow["refused"]["copies"], shadow["admitted"]["copies"]) == (len(refused), 4 - len(refused))
            own = await s.app.explanations.of(refused[0], "anonymous")
            assert not any("copy" in line for line in own["story"]) and {one["kind"] for one in own["records"]} != {"copy"}

    run("uvloop", steps())


def test_F3_a_second_pool_that_is_full_gets_no_copy_and_keeps_no_slot_for_one() -> None:
    async def steps() -> None:
        second = fake_engine()
        async with mirrored(fake_engine(), second, classes=PATIENT, places=1) as s:
            long = await s.connect()
            long.send(chat(tokens=300, stream=True))
            await first_event(long)
            await s.until(lambda: second.model.inside == 1)
            for _ in range(3):
                assert (await s.ask(chat(tokens=4))).status == 200
            assert s.app.mirrors.shown()["llama"]["left_out_total"] == {"no_room": 3}
            assert s.app.gate._desk.pools["shadow"].slots.tokens == 0
            assert s.app.snapshot()["pools"]["shadow"]["queued_requests"] == 0
            long.close()

    run("uvloop", steps())


def test_F3_a_copy_that_its_engine_loses_or_does_not_take_is_not_sent_again() -> None:
    async def steps() -> None:
        second = fake_engine()
        async with mirrored(fake_engine(), second) as s:
            second.faults.busy_times = 1
            assert (await s.ask(chat("Idempotency-Key: busy", tokens=4))).status == 200
            await s.until(lambda: len(outcomes(s, MIRROR)) == 1)
            assert outcomes(s, MIRROR)[0]["outcome"] in ("refused", "failed")
            second.faults.kind, second.faults.times = "reset", 1
            assert (await s.ask(chat("Idempotency-Key: lost", tokens=4))).status == 200
            await s.until(lambda: len(outcomes(s, MIRROR)) == 2, 10.0)
            assert outcomes(s, MIRROR)[1]["outcome"] == "failed"
            attempts = s.app.registry.counted("upstream_attempts_total", "shadow/0")
            assert sum(attempts.values()) == 2

    run("uvloop", steps())


def test_F3_the_ratio_is_the_share_that_is_copied_and_a_reload_changes_it() -> None:
    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine(), ratio=0.25) as s:
            drawn = iter([0.1, 0.24, 0.25, 0.9])
            s.app.mirrors._draw = lambda: next(drawn)
            for _ in range(4):
                assert (await s.ask(chat(tokens=2))).status == 200
            assert s.app.mirrors.shown()["llama"]["copied_total"] == 2
            await s.reload(s.text(pools={"llama": {"mirror": None}}))
            assert s.app.proxy.mirrors is None
            assert (await s.ask(chat(tokens=2))).status == 200

    run("uvloop", steps())


def test_F3_no_more_than_so_many_copies_are_under_way() -> None:
    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine(), classes=PATIENT) as s:
            s.app.mirrors._inside = {f"other {number}": object() for number in range(64)}  # type: ignore[misc]
            assert (await s.ask(chat(tokens=2))).status == 200
            counts = s.app.mirrors._left_out["llama"]
            s.app.mirrors._inside = {}
            assert counts == {"too_many_copies": 1}

    run("uvloop", steps())


def test_F3_a_drain_waits_for_no_copy() -> None:
    async def steps() -> None:
        second = fake_engine()
        async with mirrored(fake_engine(), second, settle=False) as s:
            await s.until(lambda: s.app.obstacles() == [])
            assert (await s.ask(chat(tokens=2, stop=["none"]))).status == 200
            staying = await s.connect()
            staying.send(chat(tokens=1_200, stream=True))
            await first_event(staying)
            await s.until(lambda: second.model.inside == 1)
            staying.close()
            await s.until(lambda: len(s.engines[0].held()) == 0)
            s.app.mirrors.close()
            await s.until(lambda: second.model.inside == 0 and not s.charged())
            assert outcomes(s, MIRROR)[-1]["outcome"] == "cancelled"

    run("uvloop", steps())


def test_F3_what_cannot_be_asked_of_another_model_is_left_out() -> None:
    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine(model_name="other")) as s:
            embedding = call("/tokenize", body={"model": "tiny", "prompt": "one two three"})
            assert (await s.ask(embedding)).status == 200
            assert s.app.mirrors.shown()["llama"]["left_out_total"] == {"no_such_model": 1}

    run("uvloop", steps())


def test_F3_copies_share_nothing_with_the_classes_there_are() -> None:
    """Their class is aside: weights, floors and the order of giving way are those of a file without a mirror."""

    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine()) as s:
            with_mirror = s.app.policy
            without = policy_of(s.text(pools={"llama": {"mirror": None}}), number=1)
            assert with_mirror.classes == without.classes and without.asides == {}
            aside = with_mirror.asides[MIRROR]
            assert (aside.ttft_slo_s, aside.preemptible, aside.tries_again) == (None, True, False)

    run("uvloop", steps())


def test_F3_a_copy_keeps_what_it_asks_when_its_original_lets_go_of_it() -> None:
    async def steps() -> None:
        async with mirrored(fake_engine(), fake_engine()) as s:
            body = b'{"model": "tiny", "prompt": "one two three", "max_tokens": 4}'
            parsed = DIALECTS["/v1/completions"].parse(body, Limits())
            assert isinstance(parsed, Parsed)
            copied = s.app.mirrors._parsed(parsed, "shadow")
            parsed.let_go()
            assert copied is not None and b'"prompt":"one two three"' in copied.build(4, None)

    run("uvloop", steps())

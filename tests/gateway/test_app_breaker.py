"""A failing engine is left alone, a busy one is not, over HTTP (B15, B16)."""

from __future__ import annotations

import asyncio

import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene

both_loops = pytest.mark.parametrize("loop", LOOPS)
SOON = {"breaker": {"requests_min": 5, "open_s": 1.5, "open_s_max": 1.5}}


def breaker(s: Scene) -> str:
    shown: str = s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]["breaker"]
    return shown


@both_loops
def test_B16_an_upstream_that_dies_opens_it_and_one_probe_brings_it_back(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool=SOON) as s:
            engine.faults.draining = True
            failed = [await s.ask(chat()) for _ in range(5)]
            assert [(one.status, one.code) for one in failed] == [(502, "upstream_lost")] * 5
            seen = engine.requests
            refused = await s.ask(chat())
            assert (refused.status, refused.code) == (503, "breaker_open")
            assert 1_000 <= int(refused.fields["retry-after-ms"]) <= 1_500
            assert engine.requests == seen, "nothing is sent there"
            text = s.app.registry.render().decode()
            assert 'headworks_replica_state{replica="llama/0",state="breaker_open"} 1.0' in text
            assert 'headworks_breaker_transitions_total{replica="llama/0",to="open"} 1.0' in text
            await s.until(lambda: breaker(s) == "half_open")
            assert (await s.ask(chat())).status == 502, "the probe fails"
            assert (breaker(s), (await s.ask(chat())).code) == ("open", "breaker_open")
            engine.heal()
            await s.until(lambda: breaker(s) == "half_open")
            assert (await s.ask(chat())).status == 200
            assert breaker(s) == "closed"
            text = s.app.registry.render().decode()
            assert 'headworks_breaker_transitions_total{replica="llama/0",to="open"} 2.0' in text
            assert 'headworks_breaker_transitions_total{replica="llama/0",to="closed"} 1.0' in text
            assert 'headworks_requests_total{tenant="anonymous",class="interactive",model="tiny",outcome="refused",' in text

    run(loop, steps())


def test_B16_broken_streams_open_it_and_clients_that_leave_do_not() -> None:
    async def steps() -> None:
        engine = fake_engine()
        # Open for longer than a loop can be kept from looking: what is asserted is that it opened.
        async with scene(engine, pool={"breaker": {"requests_min": 5, "open_s": 60, "open_s_max": 60}}) as s:
            for _ in range(8):
                client = await s.connect()
                client.send(chat(stream=True, tokens=1000))
                await s.until(lambda: s.inside() == 1)
                client.close()
                await s.until(lambda: s.inside() == 0 and not s.charged())
            assert breaker(s) == "closed"
            engine.fault("break", after_tokens=2, times=5)
            for _ in range(5):
                client = await s.connect()
                client.send(chat(stream=True, tokens=50))
                await first_event(client)
                await rest_of_stream(client)
                client.close()
                await s.until(lambda: not s.charged())
            assert breaker(s) == "open"

    run("uvloop", steps())


def test_B15_an_upstream_that_throttles_everything_is_429_with_its_own_hint_and_its_breaker_stays_closed() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool=SOON, classes=PATIENT) as s:
            engine.faults.busy_times, engine.faults.busy_retry_after = -1, "0.01"
            answers = await asyncio.gather(*(s.ask(chat()) for _ in range(40)))
            assert {one.status for one in answers} == {429}
            assert {one.code for one in answers} <= {"queue_timeout", "queue_delay_exceeded"}
            shown = s.app.snapshot()["pools"]["llama"]
            firsts = shown["upstream_sent"] - shown["upstream_retried"]
            assert engine.counters.busy == shown["upstream_sent"]
            assert 3 <= shown["upstream_retried"] <= 0.1 * firsts + 3
            engine.faults.busy_retry_after = "7"
            late = await s.ask(chat())
            assert (late.status, int(late.fields["retry-after"])) == (429, 7)
            assert 6_900 <= int(late.fields["retry-after-ms"]) <= 7_000
            assert breaker(s) == "closed"
            text = s.app.registry.render().decode()
            assert (
                f'headworks_upstream_attempts_total{{replica="llama/0",outcome="refused"}} {float(engine.counters.busy)}'
                in text
            )

    run("uvloop", steps())

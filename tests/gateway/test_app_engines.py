"""The whole gateway in front of engines that are no vLLM: what they prove is what frees capacity (E6, A5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from app_scene import PATIENT, SIZES, call, chat, events, first_event, rest_of_stream, run, scene

from headworks.core.ledger_limits import limits_of
from headworks.core.types import Charge
from headworks.testing.fake.llamacpp import FakeLlamaServer
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake.sglang import FakeSglang
from headworks.testing.fake_engine import FakeEngine

FAKES = {"llamacpp": FakeLlamaServer, "sglang": FakeSglang}
PLACES = 4


def engine_of(kind: str) -> FakeEngine:
    """Four places; a llama-server has no bound on what waits, and SGLang refuses what would be the third to wait."""
    sizes = replace(SIZES, running_max=PLACES, queued_max=None if kind == "llamacpp" else PLACES + 2)
    return FAKES[kind](FakeSettings(engine=sizes, context_tokens=2048))


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_E6_streams_and_whole_answers_pass_and_are_settled_exactly(kind: str, loop: str) -> None:
    async def steps() -> None:
        async with scene(engine_of(kind), replica={"engine": kind}, classes=PATIENT) as s:
            whole = await s.ask(chat("Idempotency-Key: whole", tokens=6))
            assert whole.status == 200
            assert whole.json()["usage"]["completion_tokens"] == 6
            streamed = await s.ask(chat("Idempotency-Key: streamed", tokens=7, stream=True))
            assert streamed.status == 200
            assert streamed.body.endswith(b"data: [DONE]\n\n")
            await s.settled()
            for name, tokens in (("whole", 6), ("streamed", 7)):
                usage = s.outcome(name)["usage"]
                assert (usage["output_tokens"], usage["exact"]) == (tokens, True)

    run(loop, steps())


@pytest.mark.parametrize(("kind", "evidence"), [("llamacpp", "E3a"), ("sglang", "E3b")])
def test_A5_a_client_that_leaves_is_proved_stopped_by_what_the_engine_can_show(kind: str, evidence: str) -> None:
    async def steps() -> None:
        async with scene(engine_of(kind), replica={"engine": kind}, classes=PATIENT) as s:
            staying, going = await s.connect(), await s.connect()
            staying.send(chat(tokens=400, stream=True))
            going.send(chat("Idempotency-Key: going", tokens=1_500, stream=True))
            await first_event(staying)
            await first_event(going)
            going.close()
            await s.until(lambda: len(s.charged()) == 1, 10.0)
            assert s.inside() <= 1, "released while it was inside the engine"
            await s.until(lambda: any(record["kind"] == "outcome" for record in s.records("going")))
            outcome = s.outcome("going")
            assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", evidence)
            assert (await rest_of_stream(staying))[1]
            staying.close()

    run("uvloop", steps())


def test_D4_no_more_is_sent_to_a_llama_server_than_it_has_slots() -> None:
    """What would wait inside it waits here, where a client's leaving is seen."""

    async def steps() -> None:
        engine = engine_of("llamacpp")
        async with scene(engine, replica={"engine": "llamacpp"}, classes=PATIENT) as s:
            asking = [asyncio.ensure_future(s.ask(chat(tokens=60))) for _ in range(2 * PLACES)]
            most = 0
            while not all(one.done() for one in asking):
                most = max(most, engine.model.inside)
                await asyncio.sleep(0.005)
            assert [(await one).status for one in asking] == [200] * 2 * PLACES
            assert most == PLACES
            limits = s.app.snapshot()["pools"]["llama"]
            assert (limits["requests_limit"], limits["tokens_limit"]) == (PLACES, 2048)
            assert Charge("replica:llama/0", "requests", PLACES) in set(limits_of(s.app.gate._desk)), "whoever else sends there"

    run("uvloop", steps())


def test_A5_a_llama_server_ends_what_it_stops_with_an_empty_200_which_proves_nothing() -> None:
    """An answer in one piece whose client left: a success of no bytes, by its framing. What counts is what is inside."""

    async def steps() -> None:
        engine = engine_of("llamacpp")
        async with scene(engine, replica={"engine": "llamacpp"}, classes=PATIENT) as s:
            going = await s.connect()
            going.send(chat("Idempotency-Key: going", tokens=1_900, logprobs=True))
            await s.until(lambda: s.inside() == 1)
            going.close()
            await s.until(lambda: not s.charged(), 10.0)
            assert s.inside() == 0, "released while it was inside the engine"
            await s.until(lambda: any(record["kind"] == "outcome" for record in s.records("going")))
            outcome = s.outcome("going")
            assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", "E3b"), "its clock stands still when nothing runs"

    run("uvloop", steps())


@pytest.mark.parametrize("stream", [False, True])
def test_K02_a_full_sglang_is_overload_and_no_failure(stream: bool) -> None:
    """By status, or inside a stream of status 200: it goes back to its place and is sent again."""

    async def steps() -> None:
        engine = engine_of("sglang")
        async with scene(engine, replica={"engine": "sglang"}, classes=PATIENT) as s:
            engine.faults.busy_times = 2
            answer = await s.ask(chat("Idempotency-Key: k1", tokens=5, stream=stream))
            assert answer.status == 200
            assert engine.counters.busy == 2
            await s.settled()
            assert (s.outcome("k1")["outcome"], s.outcome("k1")["evidence"]) == ("completed", "E1")

    run("uvloop", steps())


def test_D4_a_model_that_an_engine_may_yet_say_it_serves_is_not_told_to_be_missing() -> None:
    """404 is for good: SDKs give up. An engine that has said nothing yet may serve it, and 503 says to come back."""

    async def steps() -> None:
        async with scene(replica={"url": "http://127.0.0.1:1"}, settle=False) as s:
            answer = await s.ask(chat())
            assert (answer.status, answer.code) == (503, "no_replica")
        async with scene() as s:
            answer = await s.ask(chat(model="nowhere"))
            assert (answer.status, answer.code) == (404, "model_not_found")

    run("uvloop", steps())


SEVERAL = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "one two three"}], "n": 3},
    "/v1/completions": {"prompt": [[10, 11, 12, 13], [20, 21]], "n": 2},
}
"""What each of a llama-server's answers to these says by itself is a third, and about a quarter, of what was used."""


@pytest.mark.parametrize("include_usage", [None, False, True])
@pytest.mark.parametrize("path", SEVERAL)
def test_K21_several_answers_of_a_llama_server_are_settled_and_shown_as_their_sum(
    path: str, include_usage: bool | None
) -> None:
    """`include_usage` None: in one piece."""

    async def steps() -> None:
        engine = engine_of("llamacpp")
        async with scene(engine, replica={"engine": "llamacpp"}, classes=PATIENT) as s:
            body: dict[str, Any] = {"model": "tiny", "max_tokens": 6, **SEVERAL[path]}
            if include_usage is not None:
                body |= {"stream": True, "stream_options": {"include_usage": include_usage}}
            answer = await s.ask(call(path, "Idempotency-Key: k1", body=body))
            assert answer.status == 200
            prompts, answers = (6, 3) if "chat" in path else (4 + 2, 4)
            expected = {"prompt_tokens": prompts, "completion_tokens": 6 * answers}
            parts = [answer.json()] if include_usage is None else [one for one in events(answer.body) if one != "[DONE]"]
            shown = [{name: one["usage"][name] for name in expected} for one in parts if one.get("usage")]
            assert shown == ([] if include_usage is False else [expected])
            assert sum(bool(one.get("finish_reason")) for part in parts for one in part["choices"]) == answers
            await s.settled()
            usage = s.outcome("k1")["usage"]
            assert (usage["prompt_tokens"], usage["output_tokens"], usage["exact"]) == (prompts, 6 * answers, True)
            assert engine.gauges().output_tokens == 6 * answers

    run("uvloop", steps())


def test_K21_what_a_llama_server_says_of_the_first_answer_alone_is_marked_as_not_exact() -> None:
    """Log probabilities are written differently in streams: such an answer stays in one piece."""

    async def steps() -> None:
        async with scene(engine_of("llamacpp"), replica={"engine": "llamacpp"}, classes=PATIENT) as s:
            answer = await s.ask(chat("Idempotency-Key: k1", tokens=6, n=2, logprobs=True))
            assert answer.json()["usage"]["completion_tokens"] == 6, "as it came"
            await s.settled()
            usage = s.outcome("k1")["usage"]
            assert (usage["prompt_tokens"], usage["output_tokens"], usage["exact"]) == (6, 12, False)

    run("uvloop", steps())

"""What every engine with gauges must show before its evidence is believed: one suite for the real thing and the fake.

A case gets a `Subject` and raises `AssertionError` where the engine does not behave as the adapter says. Cases look only
through `engines.base.Engine`, as the gateway does, so a pass means that what the gateway concludes from the outside is
so. Where the engine can be seen from the inside (the fake), a conclusion is also held against what physically runs:
an engine that drops the connection and works on must fail here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

from headworks.testing.listener import Recorder
from headworks.testing.suites.engine_subject import (
    COMPLETIONS,
    FOREVER_S,
    GAUGES_SETTLE_S,
    STREAMS_MAX,
    Started,
    Subject,
    Unsupported,
    events_of,
    is_answering,
    leave,
    load,
    prove_stopped,
    refusal_of,
    sample_if_any,
    start,
    start_until_one_waits,
    usage_of,
    wait_until_back,
    wait_until_idle,
    wait_until_load,
)

# Ends in band.


async def stream_runs_to_its_end(subject: Subject) -> None:
    """A stream ends by its own framing, with its usage, and nothing of it stays inside."""
    started = start(subject, 20)
    assert await started.listener.until_over(30) == "end"
    assert (started.listener.status, started.listener.chunked) == (200, True)
    assert started.listener.payload.endswith(b"data: [DONE]\n\n")
    assert usage_of(started)["completion_tokens"] == 20
    await wait_until_idle(subject)
    assert await subject.control.is_inside(started.execution) in (False, None)


async def complete_body_has_its_usage(subject: Subject) -> None:
    """A body that is not streamed: prompt and output are counted exactly, both samples or, as declared, the first."""
    started = start(subject, 12, prompt_tokens=7, stream=False, n=2)
    assert await started.listener.until_over(30) == "end"
    usage = json.loads(started.listener.payload)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 12 if subject.traits.usage_each else 24)
    await wait_until_idle(subject)


async def stream_of_several_has_its_usage(subject: Subject) -> None:
    """Once for both samples, or, as declared, by each of them for itself."""
    started = start(subject, 12, prompt_tokens=7, n=2)
    assert await started.listener.until_over(30) == "end"
    used = [event["usage"] for event in events_of(started) if event.get("usage")]
    told = [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in used]
    assert told == ([(7, 12), (7, 12)] if subject.traits.usage_each else [(7, 24)])
    assert subject.engine.usage_each is subject.traits.usage_each
    await wait_until_idle(subject)


async def refused_request_runs_nothing(subject: Subject) -> None:
    """What cannot fit is refused in band and leaves nothing behind."""
    capacity = await subject.engine.describe()
    started = start(subject, 5, prompt_tokens=capacity.context_tokens + 10)
    assert await started.listener.until_over(30) == "end"
    assert started.listener.status == 400
    assert not subject.engine.is_busy(400, started.listener.payload)
    assert load(await subject.engine.sample()) == 0


async def error_event_is_no_success(subject: Subject) -> None:
    """The engine may even say `[DONE]` after an error: only a finish reason is success."""
    await subject.control.fail_next()
    started = start(subject, 50)
    assert await started.listener.until_over(30) == "end"
    events = events_of(started)
    assert any("error" in event for event in events)
    assert started.listener.payload.endswith(b"data: [DONE]\n\n") is subject.traits.done_after_error
    assert not any(choice.get("finish_reason") for event in events for choice in event.get("choices", ()))


async def busy_is_recognised_and_starts_nothing(subject: Subject) -> None:
    """Past its queue limit it says at once that nothing was started, by status or in the stream, and the gauges agree."""
    if not subject.traits.refuses:
        raise Unsupported("it lets everything wait, without a bound")
    running: list[Started] = []
    while len(running) < STREAMS_MAX:
        started = start(subject, subject.long_tokens)
        await wait_until_taken_or_answered(subject, started, len(running))
        if started.is_over:
            break
        running.append(started)
    await wait_until_load(subject, lambda sample: load(sample) >= len(running))
    await asyncio.sleep(GAUGES_SETTLE_S)
    inside = load(await subject.engine.sample())
    await leave(*running)
    await wait_until_idle(subject)
    if len(running) == STREAMS_MAX:
        raise Unsupported(f"{STREAMS_MAX} requests were taken; start it with --max-num-queued-reqs below that")
    assert await started.listener.until_over() == "end"
    assert subject.engine.is_busy(*refusal_of(started))
    assert inside == len(running)


async def wait_until_taken_or_answered(subject: Subject, started: Started, inside_before: int) -> None:
    """The gauges count it, or its answer is there."""
    await wait_until_load(subject, lambda sample: load(sample) > inside_before or started.is_over)


# A client leaves.


async def gone_while_running(subject: Subject) -> None:
    """Mid-stream: the server closes, the clock moves on, it is gone."""
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    await started.until_closed()
    await prove_stopped(subject, started)
    await wait_until_idle(subject)


async def gone_while_another_runs(subject: Subject) -> None:
    """The proof needs no empty engine: others go on and drive the clock."""
    staying, going = start(subject, subject.long_tokens), start(subject, subject.long_tokens)
    await asyncio.gather(staying.until_first_token(), going.until_first_token())
    await going.until_closed()
    await prove_stopped(subject, going, known=1)
    sample = await wait_until_load(subject, lambda sample: load(sample) == 1)
    assert staying.listener.told == ["head"], sample
    await leave(staying)
    await wait_until_idle(subject)


async def gone_while_queued(subject: Subject) -> None:
    """It never had a seat: it leaves the queue, those with seats stay."""
    if not subject.traits.notices_queued:
        raise Unsupported("who leaves while others run is noticed once it has a place: nothing is to be queued inside it")
    started = await start_until_one_waits(subject)
    *seated, queued = started
    await queued.until_closed()
    await prove_stopped(subject, queued, known=len(seated))
    await wait_until_load(subject, lambda sample: sample.waiting == 0 and sample.running == len(seated))
    await leave(*seated)
    await wait_until_idle(subject)


async def gone_before_the_first_token(subject: Subject) -> None:
    """During the prompt: within a step, which is a chunk of the prompt at the longest."""
    capacity = await subject.engine.describe()
    started = start(subject, 500, prompt_tokens=capacity.context_tokens * 3 // 4)
    await wait_until_load(subject, lambda sample: load(sample) > 0, 60)  # gauges move with a step, and that reads a whole chunk
    await started.until_closed()
    await prove_stopped(subject, started)
    await wait_until_idle(subject)


async def gone_without_a_stream(subject: Subject) -> None:
    """A body that is not streamed stops as soon, not at its end; where that is noticed late, it has to be long enough."""
    answers = (await subject.engine.describe()).running_max or 1 if subject.traits.notices_late else 1
    started = start(subject, subject.long_tokens, stream=False, n=answers)
    await wait_until_load(subject, lambda sample: load(sample) == answers)
    await started.until_closed()
    await prove_stopped(subject, started)
    assert started.listener.told == ["closed"] or subject.traits.stops_by_name or subject.traits.ends_cut_off
    await wait_until_idle(subject)


async def all_gone_at_once(subject: Subject) -> None:
    """A mass disconnect: running and queued together."""
    started = await start_until_one_waits(subject)
    for one in started:
        one.upstream.abort()
    for one in started:
        await one.until_over()
    await prove_stopped(subject, *started)
    await wait_until_idle(subject)


async def slow_client_then_gone(subject: Subject) -> None:
    """Nothing is read while paused, nothing is lost by it, and its abort is seen all the same."""
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    started.upstream.pause_reading()
    await asyncio.sleep(0.05)
    before = len(started.listener.payload)
    await asyncio.sleep(0.2)
    assert len(started.listener.payload) == before
    started.upstream.resume_reading()
    await started.listener.until(lambda listener: len(listener.payload) > before)
    started.upstream.pause_reading()
    await started.until_closed()
    await prove_stopped(subject, started)
    await wait_until_idle(subject)


# Nothing sent.


async def late_fence_sends_nothing(subject: Subject) -> None:
    """Past its time not a byte goes out."""
    started = start(subject, subject.long_tokens, send_before_s=subject.clock_s() - 0.001)
    assert await started.listener.until_over() == "not_sent late"
    assert load(await subject.engine.sample()) == 0


async def gone_before_the_write_sends_nothing(subject: Subject) -> None:
    """A client that leaves while the connection is being made never reaches the engine."""
    engine = subject.engine_at(subject.url)
    listener = Recorder()
    engine.run(secrets.token_hex(16), COMPLETIONS, b"{}", FOREVER_S, listener).abort()
    assert await listener.until_over() == "not_sent gone"
    await engine.close()
    assert load(await subject.engine.sample()) == 0


async def refused_connection_is_not_sent(subject: Subject) -> None:
    """Nobody listens: nothing was sent, and a look says so too."""
    nobody = subject.engine_at("http://127.0.0.1:9")
    listener = Recorder()
    nobody.run(secrets.token_hex(16), COMPLETIONS, b"{}", FOREVER_S, listener)
    assert await listener.until_over() == "not_sent connect"
    assert not await is_answering(replace(subject, engine=nobody))


# What is seen from outside.


async def description_and_samples_agree(subject: Subject) -> None:
    """One incarnation, whoever asks; what it can hold and prove is stated."""
    capacity = await subject.engine.describe()
    sample = await subject.engine.sample()
    assert capacity.incarnation == sample.incarnation
    assert capacity.context_tokens > 0 and (capacity.kv_tokens or 0) >= capacity.block_tokens
    assert subject.model in capacity.models
    assert capacity.evidence == subject.engine.evidence == subject.traits.evidence, capacity.notes
    assert (sample.iterations is not None) == subject.traits.has_clock
    assert sample.ended_s >= sample.begun_s


async def clock_advances_with_work_only(subject: Subject) -> None:
    """The iteration counter moves while something runs, and stands still when nothing does."""
    if not subject.traits.has_clock:
        raise Unsupported("it counts no steps")
    await wait_until_idle(subject)
    await asyncio.sleep(GAUGES_SETTLE_S)
    idle = (await subject.engine.sample()).iterations
    await asyncio.sleep(GAUGES_SETTLE_S)
    assert (await subject.engine.sample()).iterations == idle
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    running = await subject.engine.sample()
    assert running.running == 1
    later = await wait_until_load(subject, lambda sample: sample.iterations != running.iterations)
    assert later.iterations is not None and running.iterations is not None
    assert all(now >= then for then, now in zip(running.iterations, later.iterations, strict=True))
    await leave(started)
    await wait_until_idle(subject)


async def hung_engine_gives_no_proof(subject: Subject) -> None:
    """It hangs: the connection may close, but what can be seen stands still, so nothing is proved until it moves again."""
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    before = await subject.engine.sample()
    await subject.control.hang()
    try:
        await asyncio.sleep(0.1)
        started.upstream.abort()
        begun = await sample_if_any(subject)
        await asyncio.sleep(0.5)
        sample = await sample_if_any(subject)
        if begun is not None and sample is not None:
            assert (sample.iterations, load(sample)) == (begun.iterations, load(begun))
            assert load(sample) > 0, "the gauges fell although nothing moved"
    finally:
        await subject.control.go_on()
    await started.until_over()
    assert (await subject.engine.sample()).incarnation == before.incarnation, "it went on and is no other"
    await prove_stopped(subject, started)
    await wait_until_idle(subject)


async def dead_core_ends_with_an_error(subject: Subject) -> None:
    """The server says in band that the engine failed, streams and bodies alike; soon nobody answers any more."""
    stream, body = start(subject, subject.long_tokens), start(subject, subject.long_tokens, stream=False)
    await stream.until_first_token()
    await subject.control.kill_core()
    assert (await stream.listener.until_over(30), await body.listener.until_over(30)) == ("end", "end")
    assert any("error" in event for event in events_of(stream))
    assert body.listener.status == 500
    assert not subject.engine.is_busy(500, body.listener.payload)
    until_s = subject.clock_s() + 10
    while await is_answering(subject):
        assert subject.clock_s() < until_s, "its server lives on without an engine"
        await asyncio.sleep(0.1)


async def restart_is_a_new_incarnation(subject: Subject) -> None:
    """Work of the old process is lost, never ended; the new one says that it is another."""
    before = (await subject.engine.sample()).incarnation
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    await subject.control.restart()
    assert (await started.listener.until_over(30)).startswith("lost")
    sample = await wait_until_back(subject)
    assert sample.incarnation != before
    assert load(sample) == 0


async def dead_engine_is_lost(subject: Subject) -> None:
    """Gone without a word: streams are lost, samples fail, nothing is concluded."""
    started = start(subject, subject.long_tokens)
    await started.until_first_token()
    await subject.control.die()
    assert (await started.listener.until_over(30)).startswith("lost")
    assert not await is_answering(subject)


CASES: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    description_and_samples_agree,
    clock_advances_with_work_only,
    stream_runs_to_its_end,
    complete_body_has_its_usage,
    stream_of_several_has_its_usage,
    refused_request_runs_nothing,
    late_fence_sends_nothing,
    gone_before_the_write_sends_nothing,
    refused_connection_is_not_sent,
    gone_while_running,
    gone_while_another_runs,
    gone_while_queued,
    gone_before_the_first_token,
    gone_without_a_stream,
    all_gone_at_once,
    slow_client_then_gone,
    busy_is_recognised_and_starts_nothing,
    error_event_is_no_success,
    hung_engine_gives_no_proof,
    restart_is_a_new_incarnation,
    dead_core_ends_with_an_error,
    dead_engine_is_lost,
)
"""The last ones leave their mark on the engine."""

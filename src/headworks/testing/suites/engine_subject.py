"""The engine under examination: how a case starts work on it, looks at it, disturbs it and waits for it.

The clock proof is written out here once more, in `wait_until_proved`, apart from the gate's: two who agree are a witness.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headworks.core.types import ReplicaSample
from headworks.engines.base import Engine, EngineError, Upstream
from headworks.testing.listener import Recorder

ITERATIONS_MIN = 4
PROOF_S_MAX = 5.0
STREAMS_MAX = 64
GAUGES_SETTLE_S = 0.3
"""Gauges follow what happened by a few milliseconds, more on a busy machine."""
FOREVER_S = float("inf")
LONG_TOKENS = 2_000
COMPLETIONS = "/v1/completions"


class Unsupported(Exception):
    """This subject cannot be put into the state the case needs. The text says what is missing."""


class Control(Protocol):
    """The hand of the experimenter. Each raises `Unsupported` where the engine offers no way to do it."""

    async def hang(self) -> None:
        """The engine stops stepping; its HTTP server goes on answering."""
        ...

    async def go_on(self) -> None:
        """It steps again."""
        ...

    async def restart(self) -> None:
        """Another process at the same address."""
        ...

    async def kill_core(self) -> None:
        """The stepping process dies; the HTTP server says so and follows."""
        ...

    async def die(self) -> None:
        """Gone without a word."""
        ...

    async def fail_next(self) -> None:
        """The next streamed answer breaks with an error event, and `[DONE]` after it."""
        ...

    async def is_inside(self, execution: str) -> bool | None:
        """Whether the execution physically holds anything; None where nobody can look."""
        ...


@dataclass(slots=True)
class Traits:
    """What kinds of engines do differently, by their adapters' own word. The cases hold them to it."""

    evidence: tuple[str, ...] = ("E1", "E3a", "E3b", "E4")
    notices_queued: bool = True
    """A client that leaves before it has a place is seen at once."""
    done_after_error: bool = True
    """`[DONE]` also ends a stream that failed."""
    refuses: bool = True
    """It can be told how much may wait inside it."""
    usage_each: bool = False
    """Each of several answers says what it alone used: in a stream with its end, and in one piece only the first one's."""
    notices_late: bool = False
    """That a client has left an answer in one piece is seen after a second in which nobody had a result."""
    ends_cut_off: bool = False
    """What it stops because its client has left may end by its own framing, with no answer, before its connection is closed."""
    stops_by_name: bool = False
    """It is also told by name to stop, and may then end the answer in band before its connection is closed."""

    @property
    def has_clock(self) -> bool:
        """It counts its steps, which proves a stop."""
        return "E3a" in self.evidence


@dataclass(slots=True)
class Subject:
    """An engine to examine. Nobody else may use it meanwhile."""

    engine: Engine
    engine_at: Callable[[str], Engine]
    """The same kind of adapter, for another address or with connections of its own."""
    url: str
    model: str
    control: Control
    clock_s: Callable[[], float]
    traits: Traits = field(default_factory=Traits)
    long_tokens: int = LONG_TOKENS
    """Of an answer that is to last until its client leaves: of a quick engine, all that it can hold."""


@dataclass(slots=True)
class Started:
    """One execution under way."""

    execution: str
    listener: Recorder
    upstream: Upstream
    overs: tuple[str, ...] = ("closed",)
    """How it may be over once it was aborted."""
    ends_cut_off: bool = False

    @property
    def is_over(self) -> bool:
        """It had its last word: its head alone is none."""
        return self.listener.told[-1:] not in ([], ["head"])

    async def until_first_token(self) -> None:
        """The engine has shown it: it is counted inside from now on."""
        await self.listener.until(lambda listener: b"data: {" in listener.payload, 30)

    async def until_closed(self) -> None:
        """Abort, and wait for the server to close its side."""
        self.upstream.abort()
        await self.until_over()

    async def until_over(self) -> None:
        """It was aborted: wait for what shows that the server knows."""
        said = await self.listener.until_over()
        if said == "end" and self.ends_cut_off:
            assert b'"finish_reason":"' not in self.listener.payload, "a whole answer: nothing was stopped"
            await self.listener.until(lambda listener: listener.told[-1] == "closed")
        else:
            assert said in self.overs, self.listener.told


def start(
    subject: Subject,
    output_tokens: int,
    *,
    prompt_tokens: int = 8,
    send_before_s: float = FOREVER_S,
    **fields: object,
) -> Started:
    """One completion of exactly that length, streamed unless said otherwise; its prompt is in no prefix cache."""
    first = secrets.randbelow(1_000)
    body: dict[str, object] = {
        "model": subject.model,
        "prompt": [10 + (first + 7 * number) % 1_000 for number in range(prompt_tokens)],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | fields
    if not body["stream"]:
        del body["stream_options"]
    execution, listener = secrets.token_hex(16), Recorder()
    upstream = subject.engine.run(execution, COMPLETIONS, json.dumps(body).encode(), send_before_s, listener)
    overs = ("closed", "end") if subject.traits.stops_by_name else ("closed",)
    return Started(execution, listener, upstream, overs, subject.traits.ends_cut_off)


def load(sample: ReplicaSample) -> int:
    """What is inside, waiting or running."""
    assert sample.running is not None and sample.waiting is not None, "the engine shows no load"
    return sample.running + sample.waiting


async def wait_until_load(subject: Subject, reached: Callable[[ReplicaSample], bool], wait_s: float = 10.0) -> ReplicaSample:
    """Sample until the condition holds."""
    until_s = subject.clock_s() + wait_s
    while True:
        sample = await subject.engine.sample()
        if reached(sample):
            return sample
        assert subject.clock_s() < until_s, f"still {sample} after {wait_s:g} s"
        await asyncio.sleep(0.01)


async def wait_until_idle(subject: Subject, wait_s: float = 30.0) -> ReplicaSample:
    """Nothing inside: where every case begins and ends."""
    return await wait_until_load(subject, lambda sample: load(sample) == 0, wait_s)


async def wait_until_proved(subject: Subject, begun: ReplicaSample) -> float:
    """E3a: from a sample begun after the server closed, every rank advances enough or is empty. Returns seconds taken."""
    begun_s = subject.clock_s()
    assert begun.iterations is not None, "the engine shows no clock"
    while True:
        sample = await subject.engine.sample()
        assert sample.incarnation == begun.incarnation and sample.iterations is not None
        advanced = [now - then for then, now in zip(begun.iterations, sample.iterations, strict=True)]
        loads = sample.rank_loads or (load(sample),) * len(advanced)
        if all(steps >= ITERATIONS_MIN or inside == 0 for steps, inside in zip(advanced, loads, strict=True)):
            return subject.clock_s() - begun_s
        assert subject.clock_s() - begun_s < PROOF_S_MAX, f"no proof: {begun} then {sample}"
        await asyncio.sleep(0.005)


async def wait_until_counted(subject: Subject, known: int) -> None:
    """E3b: a sample begun after the server closed shows no more than what is known to run there."""
    await wait_until_load(subject, lambda sample: load(sample) <= known, PROOF_S_MAX)


async def prove_stopped(subject: Subject, *gone: Started, known: int = 0) -> None:
    """The proof comes, and what it says is true. `known`: how many others run there."""
    if subject.traits.has_clock:
        await wait_until_proved(subject, await subject.engine.sample())
    else:
        await wait_until_counted(subject, known)
    for started in gone:
        assert await subject.control.is_inside(started.execution) in (False, None), "proved stopped, and still running"


async def start_until_one_waits(subject: Subject) -> list[Started]:
    """Streams until the engine has no seat for the last one."""
    running: list[Started] = []
    while len(running) < STREAMS_MAX:
        running.append(start(subject, subject.long_tokens))
        await wait_until_load(subject, lambda sample: load(sample) == len(running) or bool(sample.waiting))
        await asyncio.sleep(0.05)
        if (await subject.engine.sample()).waiting:
            return running
    await leave(*running)
    raise Unsupported(f"{STREAMS_MAX} streams run at once; start it with --max-num-seqs below that")


async def leave(*started: Started) -> None:
    """Tidy up after a case."""
    for one in started:
        one.upstream.abort()
    for one in started:
        await one.listener.until_over()


async def sample_if_any(subject: Subject) -> ReplicaSample | None:
    """A sample, or None where none can be had."""
    try:
        return await subject.engine.sample()
    except EngineError:
        return None


async def is_answering(subject: Subject) -> bool:
    """Whether a sample can be had."""
    return await sample_if_any(subject) is not None


async def wait_until_back(subject: Subject, wait_s: float = 30.0) -> ReplicaSample:
    """Sample until there is an engine again."""
    until_s = subject.clock_s() + wait_s
    while not await is_answering(subject):
        assert subject.clock_s() < until_s, "it did not come back"
        await asyncio.sleep(0.05)
    return await subject.engine.sample()


def events_of(started: Started) -> list[dict[str, Any]]:
    """The stream's events but `[DONE]`, decoded."""
    lines = started.listener.payload.split(b"\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def refusal_of(started: Started) -> tuple[int, bytes]:
    """Status and content of an answer that is one refusal, also where it came as the only event of a stream."""
    if started.listener.status != 200:
        return started.listener.status, started.listener.payload
    (event,) = events_of(started)
    return event["error"]["code"], json.dumps(event).encode()


def usage_of(started: Started) -> dict[str, int]:
    """The usage event's content."""
    usage: dict[str, int] = next(event["usage"] for event in reversed(events_of(started)) if event.get("usage"))
    return usage

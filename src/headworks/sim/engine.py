"""What an engine model is: the one small interface between the virtual world and anything that pretends to run tokens.

A model is pure: it reads no clock and sleeps never. Every method takes `now_s`, and `next_s` tells when the model wants
to be asked again. The simulator calls `advance` from its heap of events, `testing/fake_engine.py` from a timer; both
drive the same class. Models: `ContinuousBatching` (batching.py) and `FixedRate` (fixed_rate.py); `presets.py` names
some sizes.

Two views of one engine are kept apart on purpose. `sample` is what the engine *says*: the figures of its last
finished step, so a request that arrived since is not in them, and a hung engine repeats itself. `held` is what it
*physically holds* at this moment, and is for the auditor alone: no policy may read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

ENDED = "stop"
"""The reason of an execution that produced all the tokens it was submitted with."""
ABORTED = "abort"


class Submitted(StrEnum):
    """The engine's answer at the door."""

    ACCEPTED = "accepted"
    BUSY = "busy"
    """Its queue limit is reached: nothing was started (E0)."""
    TOO_LONG = "too_long"
    """Could never fit into its memory, however empty: nothing was started."""


class FirstToken(NamedTuple):
    """The execution has its first output token. It is counted in the `Tokens` that follow, not here."""

    execution: str
    at_s: float


class Tokens(NamedTuple):
    """More output tokens of one sample of the execution."""

    execution: str
    sample: int
    tokens: int
    at_s: float


class Preempted(NamedTuple):
    """One sample lost its memory to an earlier one and waits to be computed again."""

    execution: str
    sample: int
    at_s: float


class Finished(NamedTuple):
    """Nothing of the execution is inside any more. `reason` is `ENDED` or `ABORTED`."""

    execution: str
    reason: str
    at_s: float


Output = FirstToken | Tokens | Preempted | Finished


class Held(NamedTuple):
    """What one execution occupies now: sequences that run or wait inside, and whole KV blocks counted in tokens."""

    sequences: int
    kv_tokens: int


@dataclass(slots=True)
class Gauges:
    """What the engine says of itself. Counters start at 0 with each incarnation."""

    incarnation: int
    running: int
    waiting: int
    kv_used_ratio: float
    iterations: int
    """Finished steps: the progress clock of stop evidence E3a."""
    preemptions: int
    """Late, as on real engines: it moves when the victim *resumes*."""
    prompt_tokens: int
    cached_tokens: int
    """Of `prompt_tokens`, those found in the prefix cache."""
    output_tokens: int


class Course(NamedTuple):
    """What lies before an engine. Nobody outside the model could know it."""

    unread_tokens: int
    """Of prompts inside that are not computed yet."""
    decoding: int
    context_tokens: int
    """Held by those that decode."""
    ends: list[tuple[int, int]]
    """Of every sequence inside: output tokens it will still make, and tokens it holds, or will before it makes them."""


class EngineModel(Protocol):
    """Run tokens in virtual time, and show what is physically held."""

    incarnation: int
    kv_tokens: int
    """The memory executions can use, in tokens."""
    block_tokens: int
    running_max: int
    inside: int
    """Sequences inside, running and waiting, as counted against a queue limit."""

    def submit(
        self,
        execution: str,
        prompt_tokens: int,
        output_tokens: int,
        samples: int,
        prefix_blocks: Sequence[Hashable],
        now_s: float,
    ) -> Submitted:
        """Take a request in. `output_tokens` is what each sample will really produce: no policy may see it.

        `prefix_blocks` names the content of the prompt's whole blocks, first to last; equal names share memory.
        """
        ...

    def abort(self, execution: str, now_s: float) -> None:
        """Ask to stop. It takes effect at a later step boundary; `Finished` tells. Unknown executions are ignored."""
        ...

    def next_s(self) -> float | None:
        """When something inside is due, or None while nothing is."""
        ...

    def advance(self, now_s: float) -> list[Output]:
        """Let everything happen that is due by `now_s`, in order."""
        ...

    def sample(self, now_s: float) -> Gauges:
        """What the engine would say in a scrape begun now."""
        ...

    def held(self, now_s: float) -> dict[str, Held]:
        """What is inside now, whether the gauges show it yet or not."""
        ...

    def used_tokens(self) -> int:
        """Memory in use now, shared blocks once: never above `kv_tokens`."""
        ...

    def restart(self, now_s: float) -> list[str]:
        """The process dies and a new one stands in its place, empty. Returns the executions that were lost."""
        ...

    def pause(self, now_s: float) -> None:
        """Hang: steps stand still, requests and aborts are taken in and not acted on, gauges freeze."""
        ...

    def resume(self, now_s: float) -> None:
        """Go on where it stood."""
        ...

    def slow(self, factor: float) -> None:
        """From the next step (or service) on, everything takes `factor` times as long; 1 restores."""
        ...


def on_grid_s(time_s: float) -> float:
    """The same time on a grid of one nanosecond, so that sums of steps meet the arrivals they should meet."""
    return round(time_s, 9)

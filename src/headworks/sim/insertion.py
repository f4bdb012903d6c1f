"""Was a refusal false? An engine's run is repeated with the refused request in it, and looked at.

A `RecordedEngine` writes down what it was given when, and now and then keeps a copy of itself. From such a copy the same
future can be played again, with one request more in it: the engine model is deterministic, so what differs is that
request's doing. `Insertions` goes through the refused requests in the order in which they came. Each is tried at the instant
of its arrival and, should that fail, when half of its promised time to the first token is over. It *could have been
inserted* if then

- its own first token comes within its promise, and its tokens follow within theirs, as far as it is followed, and
- no request of the actual run that was on time becomes late, in its first token or, if it ends meanwhile, in its pace.

One that could stays in: the next is tried beside it. So not every refused request is counted because of the same small gap,
and what is found is how many *together* would have been possible, which is what a false refusal costs. A client that
was refused several times counts once it is in. A request is followed until it has ended and everybody has a first
token who was inside by then, at most `FOLLOW_PROMISES` times the longest promise.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headworks.core.policy import INFINITE_S
from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import ENDED, Finished, FirstToken, Output, Preempted, Submitted
from headworks.sim.presets import BatchingSettings
from headworks.sim.traffic import Planned

DELAY_RATIOS = (0.0, 0.5)
"""Of the promise: when an insertion is tried."""
FOLLOW_PROMISES = 2.0
FOLLOW_S_MIN = 5.0


class Given(NamedTuple):
    """One thing an engine was told."""

    at_s: float
    order: int
    verb: str
    arguments: tuple[Any, ...]


class RecordedEngine(ContinuousBatching):
    """Remembers what it was given, and what it was like at the first submission after each of `keep_at_s`."""

    def __init__(self, settings: BatchingSettings, keep_at_s: Sequence[float] = ()) -> None:
        super().__init__(settings)
        self.given: list[Given] = []
        self.kept: list[tuple[float, int, bytes]] = []
        """When, how much was given before, and the engine itself."""
        self._keep_at_s = sorted(keep_at_s)

    def submit(
        self,
        execution: str,
        prompt_tokens: int,
        output_tokens: int,
        samples: int,
        prefix_blocks: Sequence[Hashable],
        now_s: float,
    ) -> Submitted:
        if self._keep_at_s and now_s >= self._keep_at_s[0]:
            del self._keep_at_s[0]
            self.kept.append((now_s, len(self.given), _packed(self)))
        self._note(now_s, "submit", (execution, prompt_tokens, output_tokens, samples, prefix_blocks))
        return super().submit(execution, prompt_tokens, output_tokens, samples, prefix_blocks, now_s)

    def abort(self, execution: str, now_s: float) -> None:
        self._note(now_s, "abort", (execution,))
        super().abort(execution, now_s)

    def _note(self, now_s: float, verb: str, arguments: tuple[Any, ...]) -> None:
        self.given.append(Given(now_s, len(self.given), verb, arguments))


def _packed(engine: RecordedEngine) -> bytes:
    """The engine without its memory of what it was given: that is kept once."""
    plain = ContinuousBatching.__new__(ContinuousBatching)
    plain.__dict__.update({name: value for name, value in vars(engine).items() if name not in ("given", "kept", "_keep_at_s")})
    return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)


@dataclass(slots=True)
class Playing:
    """An engine alone, given a list of things to do."""

    engine: ContinuousBatching
    given: list[Given]
    place: int = 0
    """How much of the list has been given."""
    first_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)

    def step(self, until_s: float) -> list[Output] | None:
        """The next thing that happens, not later than `until_s`; None when nothing does."""
        next_s = self.engine.next_s()
        given = self.given[self.place] if self.place < len(self.given) else None
        if given is not None and given.at_s <= until_s and (next_s is None or given.at_s < next_s):
            self.place += 1
            outputs = self.engine.advance(given.at_s)
            getattr(self.engine, given.verb)(*given.arguments, given.at_s)
        elif next_s is not None and next_s <= until_s:
            outputs = self.engine.advance(next_s)
        else:
            return None
        for output in outputs:
            if isinstance(output, FirstToken):
                self.first_s[output.execution] = output.at_s
            elif isinstance(output, Finished) and output.reason == ENDED:
                self.ended_s[output.execution] = output.at_s
        return outputs

    def copied(self) -> Playing:
        """The same from here on, apart from this one. What has happened is not copied."""
        packed = pickle.dumps(self.engine, pickle.HIGHEST_PROTOCOL)
        return Playing(pickle.loads(packed), self.given[self.place :])  # noqa: S301 - packed a line above


class Promise(NamedTuple):
    """What an execution that was on time was promised."""

    first_by_s: float
    token_s: float
    """Seconds a token, on average after the first."""
    output_tokens: int
    first_s: float
    """When its first token came in the actual run."""


@dataclass(slots=True)
class Refused:
    """A request that was turned away."""

    wish: int
    """Whose attempt it was."""
    at_s: float
    planned: Planned
    promise_s: float
    token_s: float


class Insertions:
    """Tries refused requests one after the other, from one kept copy on."""

    def __init__(
        self,
        kept: bytes,
        place: int,
        given: Sequence[Given],
        promises: dict[str, Promise],
        follow_s: float,
        may_preempt: bool = True,
    ) -> None:
        """`may_preempt`: so could one for which the engine takes memory back from another, if nobody is late for it."""
        self._base = Playing(pickle.loads(kept), list(given), place)  # noqa: S301 - packed by RecordedEngine
        self._promises = dict(promises)
        self._may_preempt = may_preempt
        self._first_by = sorted((promise.first_by_s, name) for name, promise in promises.items())
        self._follow_s = max(FOLLOW_S_MIN, follow_s)
        self.tried = 0
        self.inserted: set[int] = set()
        """Wishes that could have been inserted."""

    def offer(self, refused: Refused) -> None:
        """Try one; arrivals must come in order."""
        if refused.wish in self.inserted:
            return
        while self._base.step(refused.at_s) is not None:
            pass
        self.tried += 1
        for delay_ratio in DELAY_RATIOS:
            if self._try(refused, refused.at_s + delay_ratio * refused.promise_s):
                self.inserted.add(refused.wish)
                return

    def _try(self, refused: Refused, at_s: float) -> bool:
        planned, execution = refused.planned, f"inserted-{refused.wish}"
        arguments = (execution, planned.prompt_tokens, planned.output_tokens, 1, planned.prefix)
        new = Given(at_s, len(self._base.given), "submit", arguments)
        own = Promise(refused.at_s + refused.promise_s, refused.token_s, planned.output_tokens, INFINITE_S)
        trial = self._base.copied()
        insort(trial.given, new, lo=trial.place)
        first_s = self._all_on_time(trial, execution, own, at_s)
        if first_s is None:
            return False
        insort(self._base.given, new, lo=self._base.place)
        self._promises[execution] = own._replace(first_s=first_s)
        insort(self._first_by, (own.first_by_s, execution))
        return True

    def _all_on_time(self, trial: Playing, execution: str, own: Promise, at_s: float) -> float | None:
        """Follow it until its end, and whom it may push back. When its first token came; None where anybody was late."""
        until_s = at_s + self._follow_s
        due = self._due(at_s, until_s)
        insort(due, (own.first_by_s, execution))
        behind: list[str] | None = None
        while (outputs := trial.step(until_s)) is not None:
            for output in outputs:
                if isinstance(output, Preempted) and not self._may_preempt:
                    return None
                promise = own if output.execution == execution else self._promises.get(output.execution)
                if promise is not None and _is_late(output, promise, trial):
                    return None
            # Whose first token is overdue is late before it comes.
            while outputs and due and due[0][0] < outputs[-1].at_s:
                if due.pop(0)[1] not in trial.first_s:
                    return None
            if execution in trial.ended_s:
                behind = behind or [name for _, name in due if name in trial.engine.held(trial.ended_s[execution])]
                if all(name in trial.first_s for name in behind):
                    break
        return trial.first_s.get(execution)

    def _due(self, at_s: float, until_s: float) -> list[tuple[float, str]]:
        """Whose first token falls due meanwhile and was not there before."""
        low, high = bisect_left(self._first_by, (at_s, "")), bisect_left(self._first_by, (until_s, ""))
        return [(by_s, name) for by_s, name in self._first_by[low:high] if self._promises[name].first_s > at_s]


def _is_late(output: Output, promise: Promise, trial: Playing) -> bool:
    if isinstance(output, FirstToken):
        return output.at_s > promise.first_by_s
    if isinstance(output, Finished) and output.reason == ENDED:
        return _is_slow(promise, trial.first_s.get(output.execution, promise.first_s), output.at_s)
    return False


def _is_slow(promise: Promise, first_s: float, ended_s: float) -> bool:
    return ended_s - first_s > promise.token_s * max(1, promise.output_tokens - 1) + 1e-9

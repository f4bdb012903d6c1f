"""Everything that can happen in a small world: two gateways, three requests, one crash, in every order.

Where random histories go far, this goes everywhere, as far as it goes: from each state every next step is taken, states that
are the same are looked at once, and after each step the book is held against its own audit, against what was granted and
ended (an oracle that knows nothing else), and against what the engine physically holds. What was on its way is a set: any of it
may arrive next, or twice; a grant may never be heard of. Where nothing can happen any more, nothing may be held.

Times and numbers of the book are compared by their order only: a clock that went further is no other state.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from headworks.core.book import Book
from headworks.core.book_table import TERMINAL
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Command,
    Heartbeat,
    PutIncarnation,
    PutSample,
    Reserve,
    SetLimits,
    Start,
    Stop,
    TakeReader,
)
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve

OWNERS: dict[str, Owner] = {"x": FIRST, "y": SECOND, "z": FIRST}
"""The three requests and the gateways they are at. The first gateway is the one that may crash."""
TOKENS = 10
"""Of each. All of them but one fit."""
REPLICA, LIFE = "pool/0", "life"
SEQUENCES = ("running_sequence", "closing_sequence", "seen_sequence")
NOT_TOLD = ("reader", "undecided", "foreign_samples", "ended", "was", "weights", "steps", "usage", "fingerprint", "profiles")
"""Fields in which states may differ without anything coming of it: the clock, whose seat it is, turns (there is one flow)."""


class Contradiction(AssertionError):
    """A state that must not be, and the steps that lead to it."""


@dataclass(slots=True, frozen=True)
class Moment:
    """One state of the small world."""

    book: Any
    """As a snapshot."""
    phases: tuple[tuple[str, str], ...]
    """Of each request at its gateway: asked, granted, sent, seen, closing, over."""
    moving: frozenset[tuple[str, str]]
    """Commands on their way: (verb, request)."""
    again: frozenset[tuple[str, str]] = frozenset()
    """Those that have arrived twice."""
    inside: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    """Out of the engine, and not told yet."""
    held: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    """What the oracle knows: granted and not ended, and ended."""
    crashed: bool = False
    now_ms: int = 0

    def phase(self, name: str) -> str:
        return dict(self.phases)[name]

    def lives(self, name: str) -> bool:
        """Whether its gateway does."""
        return not (self.crashed and OWNERS[name] is FIRST)

    def with_phase(self, name: str, phase: str, *sends: str, **changed: Any) -> Moment:
        """Its gateway goes on with it, and puts commands on their way."""
        phases = tuple((one, phase if one == name else before) for one, before in self.phases)
        return replace(self, phases=phases, moving=self.moving | {(verb, name) for verb in sends}, **changed)

    def key(self) -> str:
        """Equal for states from which the same can happen."""
        rest = [sorted(one) for one in (self.moving, self.again, self.inside, self.left, self.held, self.ended)]
        return json.dumps([_ranked(self.book), self.phases, rest, self.crashed], default=str)


def _ranked(book: Any) -> Any:
    """Its sequence numbers replaced by their order, its times left out."""
    rows = [*book["entries"], *book["boots"]]
    samples = [sample for one in book["replicas"] for sample in one["samples"]]
    numbers = {row[name] for row in rows for name in SEQUENCES if name in row}
    numbers |= {number for sample in samples for number in sample[1:3]}
    order = {number: place for place, number in enumerate(sorted(numbers - {0}), 1)} | {0: 0}
    shown = {
        part: [{name: _of_field(name, value, order) for name, value in row.items()} for row in book[part]]
        for part in ("entries", "boots", "replicas")
    }
    return shown | {"orphans": book["orphans"], "limits": book["limits"]}


def _of_field(name: str, value: Any, order: dict[int, int]) -> Any:
    if name in SEQUENCES:
        return order[value]
    if name == "samples":
        return [[sample[0], *(order[number] for number in sample[1:3])] for sample in value]
    return None if name.endswith("_ms") or name in NOT_TOLD else value


class SmallWorld:
    """The search, over one kind of book."""

    def __init__(self, kind: type[Book] = Book, *, names: str = "xyz", twice: bool = True) -> None:
        """`names`: which of the requests there are. `twice`: each command may arrive a second time."""
        self._names = names
        self._tokens_max = TOKENS * (len(names) - 1)
        self.states = self.steps = self.ends = 0
        self._kind = kind
        self._twice = twice

    def first(self) -> Moment:
        """Both gateways live, and everything was asked; nothing has arrived."""
        book = self._kind(LEASE_MS, REMEMBER_MS)
        limits = SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", self._tokens_max),))
        book.apply([limits, Heartbeat(FIRST), Heartbeat(SECOND), PutIncarnation(REPLICA, FIRST, LIFE, (), 0)], 0)
        moving = frozenset(("reserve", name) for name in self._names)
        return Moment(book.snapshot(), tuple((name, "asked") for name in self._names), moving)

    def search(self, *, depth_max: int, states_max: int) -> bool:
        """Breadth first, so what is found is shortest. True when everything within the depth was seen.

        Raises `Contradiction` with the steps that lead to it.
        """
        start = self.first()
        waiting: deque[tuple[Moment, tuple[str, ...]]] = deque([(start, ())])
        known = {hash(start.key())}
        while waiting:
            moment, path = waiting.popleft()
            self.states += 1
            if self.states > states_max:
                return False
            if len(path) >= depth_max:
                continue
            steps = 0
            for what, following in self._following(moment, path):
                steps += 1
                key = hash(following.key())
                if key not in known:
                    known.add(key)
                    waiting.append((following, (*path, what)))
            self.steps += steps
            if not self._is_going_on(moment):
                self._ends(moment, path)
        return True

    # --- what can happen next -------------------------------------------------------------------------------------

    def _following(self, moment: Moment, path: tuple[str, ...]) -> Iterator[tuple[str, Moment]]:
        for name, phase in moment.phases:
            if moment.lives(name):
                yield from self._at_the_gateway(moment, name, phase)
        for name in sorted(moment.inside):
            yield f"{name} ends", replace(moment, inside=moment.inside - {name}, left=moment.left | {name})
        for verb, name in sorted(moment.moving):
            yield from self._arrivals(moment, verb, name, path)
        if not moment.crashed:
            yield "the first gateway is killed", replace(moment, crashed=True)
        if moment.crashed:
            yield "adopt", self._adopted(moment, path)
        if any(entry["closing_sequence"] for entry in moment.book["entries"]):
            yield "prove", self._proved(moment, path)

    def _at_the_gateway(self, moment: Moment, name: str, phase: str) -> Iterator[tuple[str, Moment]]:
        if phase == "asked":
            yield f"{name} gives up", moment.with_phase(name, "over", "cancel", "unsent")
        elif phase == "granted":
            yield f"{name} is sent", moment.with_phase(name, "sent", inside=moment.inside | {name})
            yield f"{name} gives up", moment.with_phase(name, "over", "unsent")
        elif name in moment.left and phase in ("sent", "seen", "closing"):
            told = "proved" if phase == "closing" else "in band"
            yield f"{name} is told", moment.with_phase(name, "over", told, left=moment.left - {name})
        elif phase == "sent":
            yield f"{name} is seen", moment.with_phase(name, "seen", "start")
            yield f"{name} is cancelled", moment.with_phase(name, "closing", "cancel")
        elif phase == "seen":
            yield f"{name} is cancelled", moment.with_phase(name, "closing", "cancel")

    def _arrivals(self, moment: Moment, verb: str, name: str, path: tuple[str, ...]) -> Iterator[tuple[str, Moment]]:
        """It arrives; its answer is heard, or (of a grant) never is; it may come once more."""
        message = verb, name
        what = f"{verb} {name} arrives"
        once = replace(moment, moving=moment.moving - {message})
        yield what, self._arrived(once, verb, name, path, heard=True)
        if verb == "reserve":
            yield f"{what} and is not heard", self._arrived(once, verb, name, path, heard=False)
        if self._twice and message not in moment.again:
            twice = replace(moment, again=moment.again | {message})
            yield f"{what}, first of two", self._arrived(twice, verb, name, path, heard=False)

    def _arrived(self, moment: Moment, verb: str, name: str, path: tuple[str, ...], *, heard: bool) -> Moment:
        answers, after = self._ask(moment, [_command(verb, name)], (*path, f"{verb} {name}"))
        if verb == "reserve" and heard and after.lives(name) and after.phase(name) == "asked":
            phase = {"granted": "granted", "recorded": "granted"}.get(answers[0].outcome, "over")
            if phase == "granted" and answers[0].state != "RESERVED":
                phase = "over"
            after = after.with_phase(name, phase)
        return after

    def _adopted(self, moment: Moment, path: tuple[str, ...]) -> Moment:
        """A lease goes by: what the dead gateway had is an orphan, and the other one takes it over."""
        moment = self._later(moment, [SECOND], (*path, "adopt"))
        _, after = self._ask(moment, [Adopt(SECOND, len(OWNERS))], (*path, "adopt"))
        return after

    def _later(self, moment: Moment, living: list[Owner], path: tuple[str, ...]) -> Moment:
        """More than a lease goes by, and the living keep theirs."""
        for _ in range(2):
            moment = replace(moment, now_ms=moment.now_ms + LEASE_MS // 2 + 1)
            _, moment = self._ask(moment, [Heartbeat(owner) for owner in living], path)
        return moment

    def _proved(self, moment: Moment, path: tuple[str, ...]) -> Moment:
        """A lease goes by; the second gateway looks at the engine, and everybody vouches for what he hears of."""
        told = (*path, "prove")
        living = [SECOND] if moment.crashed else [FIRST, SECOND]
        moment = self._later(moment, living, told)
        seat, moment = self._ask(moment, [TakeReader(REPLICA, SECOND)], told)
        if seat[0].outcome != "ok":
            return moment
        put, moment = self._ask(moment, [PutSample(REPLICA, SECOND, LIFE, len(moment.inside), seat[0].sequence)], told)
        beats: list[Command] = [
            Heartbeat(owner, 0, put[0].sequence, tuple(sorted(n for n in self._unheard(moment) if OWNERS[n] is owner)))
            for owner in living
        ]
        _, moment = self._ask(moment, beats, told)
        return moment

    @staticmethod
    def _unheard(moment: Moment) -> set[str]:
        """What a gateway cannot vouch for: it has left, or its stop or cancel is on its way."""
        return set(moment.left) | {name for name, phase in moment.phases if phase in ("closing", "over")}

    # --- the book and its witnesses -------------------------------------------------------------------------------

    def _ask(self, moment: Moment, commands: list[Command], path: tuple[str, ...]) -> tuple[list[Answer], Moment]:
        book = self._kind(LEASE_MS, REMEMBER_MS)
        book.restore(moment.book, replay=True)
        answers = book.apply(commands, moment.now_ms)
        held, ended = set(moment.held), set(moment.ended)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(command, Reserve) and answer.outcome == "granted":
                self._require(answer.execution not in ended, path, f"{answer.execution} had ended and is granted")
                held.add(answer.execution)
            over = [record.execution for record in answer.records if record.state in TERMINAL]
            if isinstance(command, Stop) and answer.outcome == "ok":
                over.append(command.execution)
            for name in over:
                self._require(name not in ended, path, f"{name} ended twice")
                held.discard(name)
                ended.add(name)
        after = replace(moment, book=book.snapshot(), held=frozenset(held), ended=frozenset(ended))
        self._judge(book, after, path)
        return answers, after

    def _judge(self, book: Book, moment: Moment, path: tuple[str, ...]) -> None:
        problems = book.check()
        self._require(not problems, path, "; ".join(problems))
        tokens = book.held("pool:pool", "tokens")
        self._require(tokens == TOKENS * len(moment.held), path, f"{tokens} tokens are held for {sorted(moment.held)}")
        self._require(tokens <= self._tokens_max, path, f"{tokens} tokens are held of {self._tokens_max}")
        self._require(moment.inside <= moment.held, path, f"{sorted(moment.inside - moment.held)} runs and is not charged")

    def _is_going_on(self, moment: Moment) -> bool:
        living = any(phase != "over" and moment.lives(name) for name, phase in moment.phases)
        return bool(moment.moving or moment.inside or living)

    def _ends(self, moment: Moment, path: tuple[str, ...]) -> None:
        """Nothing is on its way, nothing runs, nobody wants anything: after adoption and proof nothing may be held."""
        self.ends += 1
        after = self._proved(self._adopted(moment, path) if moment.crashed else moment, path)
        after = self._proved(after, path)
        self._require(not after.held, path, f"{sorted(after.held)} is held for ever")

    @staticmethod
    def _require(holds: bool, path: tuple[str, ...], what: str) -> None:
        if not holds:
            raise Contradiction(f"{what}\n  " + "\n  ".join(path))


def _command(verb: str, name: str) -> Command:
    owner = OWNERS[name]
    commands: dict[str, Callable[[], Command]] = {
        "reserve": lambda: reserve(name, TOKENS, owner=owner),
        "start": lambda: Start(name, owner),
        "cancel": lambda: Cancel(name, owner),
        "unsent": lambda: Stop(name, owner, "E0", "cancelled", None),
        "in band": lambda: Stop(name, owner, "E1", "completed", None),
        "proved": lambda: Stop(name, owner, "E3a", "cancelled", None),
    }
    return commands[verb]()


def main() -> int:
    """`python -m headworks.testing.small_scope`, which `scripts/small-scope` runs."""
    parser = argparse.ArgumentParser(description="Every order of what can happen to two gateways, three requests and a crash.")
    parser.add_argument("--depth", type=int, default=8, help="steps from the beginning")
    parser.add_argument("--states", type=int, default=10_000_000, help="look at so many states at most")
    parser.add_argument("--requests", choices=("xy", "xyz"), default="xyz", help="x and z are at one gateway, y at the other")
    parser.add_argument("--once", action="store_true", help="nothing arrives twice")
    chosen = parser.parse_args()
    world = SmallWorld(names=chosen.requests, twice=not chosen.once)
    try:
        whole = world.search(depth_max=chosen.depth, states_max=chosen.states)
    except Contradiction as found:
        sys.stderr.write(f"does not hold: {found}\n")
        return 1
    seen = "everything" if whole else "not everything"
    sys.stdout.write(f"{world.states} states, {world.steps} steps, {world.ends} ends: {seen} within {chosen.depth} steps\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An engine as a log remembers it: the gate is told of it what it was told then, and what a fit says where that differs.

It stands where `sim/replica.py` stands. What is told is

- a request's first byte, its end and its proof, at the recorded instants if it was sent at the recorded instant, at the same
  distance from its sending if not, and at fitted times if the load inside is another or it never ran (`replay_model.py`);
- the gauges of the recorded looks, moved by what is inside now and was not then, or the reverse;
- of a replica the log has never seen, gauges made from what is inside alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from headworks.core.events import EngineSilent, Event, Evidence, ReplicaDescribed, ReplicaSampled
from headworks.core.instants import turn_ends_s
from headworks.core.types import Capacity, ReplicaSample
from headworks.sim.connection import Listener, Sending
from headworks.sim.engine import on_grid_s
from headworks.sim.world import Action, World
from headworks.tools.log_lines import Arrival, Ended
from headworks.tools.replay_model import ALIKE_RATIO, ALIKE_REQUESTS, Course, Inside, Model, held_tokens

SAME_S = 0.05
"""Sent within so much of the recorded instant: what followed comes at its recorded instant."""
LOOK_S = 0.5
"""A log leaves out looks at an idle engine; one that is not idle any more in the plan is looked at this often."""
JUST_BEFORE_S = 1e-9
"""What happens at the instant of an end happens before it."""
ABOUT_TOKENS = 8
"""An event may carry several tokens, so what is heard of is a little more than what was waited for."""
ONLY_IN_BAND = ("E1",)
PROVED = "E3a"
ITERATIONS_A_LOOK = 8


class Agenda:
    """What is known to have happened at an instant, in the order of the log.

    A gateway handles everything that came in one turn of its loop at one instant: who was first decides who gets the room.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._due: dict[float, list[tuple[int, int, Action]]] = {}

    def at(self, at_s: float, place: int, action: Action) -> None:
        """`place`: of the line that tells of it."""
        at_s = on_grid_s(at_s)
        due = self._due.get(at_s)
        if due is None:
            self._due[at_s] = due = []
            self._world.at(at_s, partial(self._run, at_s))
        due.append((place, len(due), action))

    def _run(self, at_s: float) -> None:
        for _, _, action in sorted(self._due.pop(at_s), key=_by_place):
            action()


def _by_place(due: tuple[int, int, Action]) -> tuple[int, int]:
    return due[:2]


class _Answer:
    """One execution inside."""

    __slots__ = (
        "arrival",
        "begun",
        "closing",
        "course",
        "end_s",
        "first_s",
        "listener",
        "marks",
        "over",
        "same",
        "tokens",
        "watched",
    )

    def __init__(
        self, arrival: Arrival, listener: Listener, course: Course, sent_s: float, watched: int, *, same: bool
    ) -> None:
        self.arrival = arrival
        self.same = same
        self.marks = arrival.ended.heard if same else ()
        """When how many of its tokens had been counted then, if this is then."""
        self.listener = listener
        self.course = course
        self.first_s = on_grid_s(sent_s + course.first_s)
        self.end_s = on_grid_s(sent_s + course.end_s)
        self.tokens = held_tokens(course.usage, 0)
        self.watched = watched
        self.begun = self.closing = self.over = False

    def unheard_tokens(self, now_s: float) -> int:
        """What is counted of it when it is stopped, if that is news: what was then, or evenly from first byte to end."""
        usage = self.arrival.ended.usage
        if self.same:
            heard_tokens = self.marks[-1][1] if self.marks else 0
            return usage.output_tokens if usage is not None and not usage.exact and usage.output_tokens > heard_tokens else 0
        if not self.begun or self.end_s <= self.first_s:
            return 0
        return int(min(1.0, (now_s - self.first_s) / (self.end_s - self.first_s)) * self.course.usage.output_tokens)

    def is_heard_at(self, tokens: int) -> bool:
        """Whether it was heard of there, so that nobody need guess when it was."""
        return any(tokens <= counted <= tokens + ABOUT_TOKENS for _, counted in self.marks)

    def reached_s(self, tokens: int) -> float:
        """When it will be so far: evenly between two instants at which it was heard of."""
        known = [(self.first_s, 0), *self.marks, (self.end_s, max(1, self.course.usage.output_tokens))]
        for (from_s, fewer), (to_s, more) in pairwise(known):
            if fewer < tokens <= more:
                return from_s + (tokens - fewer) / (more - fewer) * (to_s - from_s)
        return self.end_s


class RecordedEngine:
    """One replica of the policy that is tried. `arrival_of` names what an execution was run for."""

    def __init__(
        self,
        name: str,
        recorded: Iterable[Ended],
        model: Model,
        world: World,
        agenda: Agenda,
        arrival_of: Callable[[str], Arrival],
        tell: Callable[[Event], None],
        wake_at: Callable[[float, Action], None],
    ) -> None:
        self.name = name
        self._wake_at = wake_at
        """Has something done when it is due, or when it was really done."""
        self._model = model
        self._world = world
        self._agenda = agenda
        self._arrival_of = arrival_of
        self._tell = tell
        self._then = Inside(recorded)
        """What the log's engine had inside."""
        self._answers: dict[str, _Answer] = {}
        self._tokens = 0
        self._opened_s, self._found = float("-inf"), 0
        """The turn in which the last one was sent, and how many were inside before it and those sent with it."""
        self._capacity: Capacity | None = None
        self._sample: ReplicaSample | None = None
        """The last recorded one."""
        self._looked_s = float("-inf")
        self._iterations = 0
        """More than in the log."""
        self._is_unseen = self._is_unreachable = False
        self.kv_used: list[tuple[float, float]] = []
        """Instants, and how full its memory was said to be."""

    # what the log says of it

    def described(self, capacity: Capacity) -> None:
        """It said what it can hold."""
        self._capacity = capacity
        self._tell(ReplicaDescribed(capacity))

    def sampled(self, sample: ReplicaSample) -> None:
        """A recorded look."""
        self._sample = sample
        self._is_unseen = self._is_unreachable = False
        self._look(sample)

    def unseen(self, *, unreachable: bool) -> None:
        """A recorded look that failed: nothing is seen of it until the next that did not, or not even a connection made."""
        self._is_unseen, self._is_unreachable = True, unreachable

    def keep_looking(self) -> None:
        """Between recorded looks, which an idle engine's log leaves out, and at an engine that no log knows."""
        now_s, last = self._world.now_s, self._sample
        # What was inside then was seen by the looks that are recorded, however long a busy process took to look again.
        left_out = not self._then.at(now_s) and (last is None or (last.running == 0 and last.waiting == 0))
        if self._capacity is not None and left_out and not self._is_unseen and now_s - self._looked_s >= 0.9 * LOOK_S:
            self._look(replace(last or _blank(self._capacity), begun_s=now_s, ended_s=now_s))
        self._wake_at(now_s + LOOK_S, self.keep_looking)

    def _look(self, sample: ReplicaSample) -> None:
        self._looked_s = self._world.now_s
        moved = self._moved(sample)
        if moved.kv_used_ratio is not None:
            self.kv_used.append((self._looked_s, moved.kv_used_ratio))
        self._tell(ReplicaSampled(moved))

    def _moved(self, sample: ReplicaSample) -> ReplicaSample:
        """Its gauges, by what is inside now and was not then."""
        now, then = len(self._answers), self._then.at(self._world.now_s)
        alike = abs(now - then) <= max(ALIKE_REQUESTS, ALIKE_RATIO * then)
        if (alike and then) or sample.running is None or sample.waiting is None:
            return self._on(sample)
        load = max(0, sample.running + sample.waiting + now - then)
        most = self._capacity.running_max if self._capacity is not None else None
        running = min(load, sample.running if sample.waiting else most or load)
        if load:
            self._iterations += ITERATIONS_A_LOOK
        waiting = load - running
        kv_used_ratio = self._kv_used_ratio(sample)
        return replace(self._on(sample), running=running, waiting=waiting, kv_used_ratio=kv_used_ratio, rank_loads=(load,))

    def _on(self, sample: ReplicaSample) -> ReplicaSample:
        """Its clock goes on where more runs than then."""
        if not self._iterations or sample.iterations is None:
            return sample
        return replace(sample, iterations=tuple(count + self._iterations for count in sample.iterations))

    def _kv_used_ratio(self, sample: ReplicaSample) -> float | None:
        kv_tokens = self._capacity.kv_tokens if self._capacity is not None else None
        if sample.kv_used_ratio is None or not kv_tokens:
            return sample.kv_used_ratio
        return min(1.0, max(0.0, sample.kv_used_ratio + (self._tokens - self._then.tokens) / kv_tokens))

    # what the gateway does

    def open(self, sending: Sending, listener: Listener) -> None:
        """It is sent, if anybody listens."""
        arrival, now_s = self._arrival_of(sending.execution), self._world.now_s
        if self._is_unreachable:
            self._world.after(0.0, lambda: listener.on_not_sent(sending.execution, "connect"))
            return
        sent_s = arrival.ended.sent_s
        same = sent_s is not None and abs(now_s - sent_s) <= SAME_S
        turn_s = turn_ends_s(now_s)
        if turn_s != self._opened_s:
            self._opened_s, self._found = turn_s, len(self._answers)
        course = self._model.course(arrival, self._found + 1, sending.output_tokens_max, same=same)
        from_s = sent_s if sent_s is not None and same else now_s
        answer = _Answer(arrival, listener, course, from_s, sending.watch_tokens, same=same)
        self._answers[sending.execution] = answer
        self._tokens += answer.tokens
        if course.first_s <= course.end_s:
            self._world.at(answer.first_s, lambda: self._begin(sending.execution, answer))
        self._agenda.at(answer.end_s, arrival.end_place, lambda: self._end(sending.execution, answer))

    def _begin(self, execution: str, answer: _Answer) -> None:
        if answer.over or answer.closing:
            return
        answer.begun = True
        answer.listener.on_first_byte(execution)
        for at_s, tokens in answer.marks:
            self._world.at(min(at_s, answer.end_s - JUST_BEFORE_S), partial(self._hear, execution, answer, tokens))
        self._watch(execution, answer)

    def _end(self, execution: str, answer: _Answer) -> None:
        """Its end, unless a stop has been proved before."""
        course = answer.course
        if answer.over or ((course.silent or course.lost) and answer.closing):
            return
        if course.silent:
            self._tell(EngineSilent(execution, 0.0))
        elif course.lost:
            answer.closing = True
            answer.listener.on_lost(execution, "as logged")
            self._prove_later(execution, answer)
        else:
            if not answer.begun and not answer.closing and not course.failed:
                answer.listener.on_first_byte(execution)  # an answer in one piece: its first byte came with its last
            self._over(execution, answer)
            answer.listener.on_stopped(execution, course.usage, course.failed)

    def watch(self, execution: str, output_tokens: int) -> None:
        """Its progress is to be told when it has written so much."""
        answer = self._answers.get(execution)
        if answer is not None:
            answer.watched = output_tokens
            self._watch(execution, answer)

    def _watch(self, execution: str, answer: _Answer) -> None:
        tokens = answer.watched
        if answer.begun and 0 < tokens < answer.course.usage.output_tokens and not answer.is_heard_at(tokens):
            self._world.at(answer.reached_s(tokens), lambda: self._reach(execution, answer, tokens))

    def _reach(self, execution: str, answer: _Answer, tokens: int) -> None:
        if answer.watched == tokens:
            self._hear(execution, answer, tokens)

    def _hear(self, execution: str, answer: _Answer, tokens: int) -> None:
        if not answer.over and not answer.closing:
            answer.listener.on_progress(execution, tokens)

    def abort(self, execution: str) -> None:
        """Stop it. Its proof comes as late as it did, or as proofs did; its end in band may come before."""
        answer = self._answers.get(execution)
        if answer is None or answer.closing:
            return
        answer.closing = True
        unheard_tokens = answer.unheard_tokens(self._world.now_s)
        if unheard_tokens:
            answer.listener.on_progress(execution, unheard_tokens)
        if not self._is_read_to_its_end and not self._ends_first(answer):
            self._prove_later(execution, answer)

    def _ends_first(self, answer: _Answer) -> bool:
        """In the log it ended in band while it was being stopped, and it is about to do so again."""
        ended = answer.arrival.ended
        left_s = answer.end_s - self._world.now_s
        return ended.evidence == "E1" and ended.unconfirmed_s is not None and left_s <= ended.unconfirmed_s + SAME_S

    @property
    def _is_read_to_its_end(self) -> bool:
        """Nothing can be proved of this kind of engine but the end in band."""
        return self._capacity is not None and tuple(self._capacity.evidence) == ONLY_IN_BAND

    def _prove_later(self, execution: str, answer: _Answer) -> None:
        self._world.after(self._model.proof_s(answer.arrival.ended), lambda: self._prove(execution, answer))

    def _prove(self, execution: str, answer: _Answer) -> None:
        if answer.over:
            return
        self._over(execution, answer)
        level = answer.arrival.ended.evidence
        self._tell(Evidence(execution, level if level not in ("", "E0", "E1") else PROVED))
        answer.listener.on_closed(execution)

    def _over(self, execution: str, answer: _Answer) -> None:
        answer.over = True
        self._answers.pop(execution, None)
        self._tokens -= answer.tokens

    def scrape(self, answered: Callable[[ReplicaSample | None], None]) -> None:
        """The gate wants a look. Looks come when they came."""

    def forsake(self, listener: Listener) -> None:
        """The gateway is gone."""
        self._answers.clear()


def _blank(capacity: Capacity) -> ReplicaSample:
    """What an engine with nothing inside would say."""
    return ReplicaSample(capacity.replica, capacity.incarnation, 0.0, 0.0, (0,), 0, 0, 0.0, None, None, (0,))

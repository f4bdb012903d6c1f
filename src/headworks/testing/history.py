"""Was there one ledger? A history of what several processes asked and heard, held against the book.

Each process writes down when it asked a list, and when and what it heard; a list that was never answered may have been run
or not. A *witness* is an order of the lists that keeps to the clock (what was answered before another was asked stands before
it) and in which one book, asked in that order, gives every answer that was heard. If there is none, the store was not one
ledger: it lost something, did something twice, or let two of them in at once.

The store numbers commands (`Answer.sequence`), so the order of what was answered is known and only has to be believed after
it was checked. Lists without an answer are tried where numbers are missing, each after it was asked.

Answers that depend on the store's clock (leases, turns between flows) are not compared here: a history leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headworks.core.book import Book
from headworks.core.commands import Answer, Command

TRIES_MAX = 100_000
NOW_MS = 1


@dataclass(slots=True)
class Asked:
    """One list, by one process. Times are of a clock that all processes share."""

    process: int
    commands: Sequence[Command]
    asked_s: float
    heard_s: float | None = None
    """None: nobody knows whether it was run."""
    answers: Sequence[Answer] | None = None

    @property
    def first(self) -> int:
        """The number of its first command."""
        assert self.answers, "it has no answers"
        return self.answers[0].sequence


class NoWitness(AssertionError):
    """No single ledger can have given these answers. The text says where the search came to an end."""


def witness(history: Sequence[Asked], book: Book) -> list[Asked]:
    """An order in which `book`, as it was when the history began, gives every answer heard. Raises `NoWitness`."""
    heard = sorted((one for one in history if one.answers), key=lambda one: one.first)
    _keeps_to_the_clock(heard)
    return _Search(heard, [one for one in history if not one.answers]).run(book)


def _keeps_to_the_clock(heard: Sequence[Asked]) -> None:
    """By their numbers, nothing stands before what had been answered before it was asked."""
    latest: Asked | None = None
    for one in heard:
        assert one.heard_s is not None, "what was heard was heard at some time"
        if latest is not None and one.heard_s < latest.asked_s:
            raise NoWitness(f"{one.first} was answered before {latest.first} was asked, and stands after it")
        if latest is None or one.asked_s > latest.asked_s:
            latest = one


class _Search:
    """Places unanswered lists into the gaps, depth first, the book copied where there is a choice."""

    def __init__(self, heard: Sequence[Asked], unheard: Sequence[Asked]) -> None:
        self._heard = heard
        self._unheard = sorted(unheard, key=lambda one: one.asked_s)
        self._tries = 0
        self._furthest = ""

    def run(self, book: Book) -> list[Asked]:
        start = book.sequence + 1
        found = self._from(0, start, tuple(range(len(self._unheard))), book)
        if found is None:
            raise NoWitness(self._furthest or "nothing was heard that could be held against the book")
        return found

    def _from(self, number: int, sequence: int, left: tuple[int, ...], book: Book) -> list[Asked] | None:
        """The rest of an order, from this heard list and this command's number on."""
        order: list[Asked] = []
        while number < len(self._heard):
            one = self._heard[number]
            if one.first > sequence:
                rest = self._through_a_gap(number, sequence, left, book)
                return None if rest is None else order + rest
            difference = _difference(one, book)
            if one.first < sequence or difference:
                self._furthest = f"at {one.first}, process {one.process}: {difference or 'two lists under one number'}"
                return None
            order.append(one)
            sequence += len(one.commands)
            number += 1
        return order

    def _through_a_gap(self, number: int, sequence: int, left: tuple[int, ...], book: Book) -> list[Asked] | None:
        """Numbers are missing before the next heard list: one of the unheard must have been run here."""
        bound = self._heard[number]
        for index in self._fitting(number, sequence, left):
            self._tries += 1
            if self._tries > TRIES_MAX:
                raise NoWitness(f"no order was found in {TRIES_MAX:,} tries; the last ended {self._furthest}")
            one, branch = self._unheard[index], _copied(book)
            branch.apply(one.commands, NOW_MS)
            rest = self._from(number, sequence + len(one.commands), tuple(i for i in left if i != index), branch)
            if rest is not None:
                return [one, *rest]
        self._furthest = self._furthest or f"commands {sequence} to {bound.first - 1} were run, and nobody asked them"
        return None

    def _fitting(self, number: int, sequence: int, left: tuple[int, ...]) -> Iterator[int]:
        """What may stand here: it fits, and had been asked before whatever stands behind it was answered. Of equals one."""
        room = self._heard[number].first - sequence
        answered_s = min(one.heard_s for one in self._heard[number:] if one.heard_s is not None)
        tried: list[Sequence[Command]] = []
        for index in left:
            one = self._unheard[index]
            if len(one.commands) <= room and one.asked_s < answered_s and one.commands not in tried:
                tried.append(one.commands)
                yield index


def _copied(book: Book) -> Book:
    """Another book with the same in it, made as after a restart: compiled objects are no matter for `copy`."""
    branch = type(book)(book.lease_ms, book.remember_ms)
    branch.restore(book.snapshot(), replay=True)
    return branch


def _difference(one: Asked, book: Book) -> str:
    """What the book says otherwise, asked the same; empty if nothing."""
    assert one.answers is not None, "it was heard"
    for command, heard, given in zip(one.commands, one.answers, book.apply(one.commands, NOW_MS), strict=True):
        if (heard.outcome, heard.state, _sums(heard)) != (given.outcome, given.state, _sums(given)):
            said = f"{heard.outcome} {heard.state} {_sums(heard)}".rstrip(" []")
            return f"{command} was answered {said}, a ledger says {given.outcome} {given.state} {_sums(given)}".rstrip(" []")
    return ""


def _sums(answer: Answer) -> list[tuple[int, ...]]:
    """Of the sessions it tells: tokens, spent, live, unspent, returned. Its times are of the store's own clock."""
    if answer.verb == "heartbeat":  # who lives depends on the clock, and so does whose sessions are over
        return []
    told = answer.sessions
    return [(x.tokens, x.spent_tokens, x.live_tokens, x.unspent_tokens, x.returned_tokens) for x in told]


def held_at_most(grants: Sequence[tuple[float, float, int]]) -> int:
    """What was certainly held at one instant, at most. A grant: when it was heard, when its end was asked, how much."""
    edges = sorted(
        [(heard_s, 1, amount) for heard_s, _, amount in grants] + [(ends_s, 0, -amount) for _, ends_s, amount in grants]
    )
    held = most = 0
    for _, _, amount in edges:
        held += amount
        most = max(most, held)
    return most

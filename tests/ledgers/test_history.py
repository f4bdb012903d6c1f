"""The checker of histories: it finds the order there was, and says so when there can have been none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from headworks.core.book import Book
from headworks.core.commands import Answer, CloseSession, Command, Heartbeat, Reserve, SetLimits, Stop
from headworks.core.types import Charge
from headworks.testing.history import Asked, NoWitness, held_at_most, witness
from headworks.testing.planted import ChecksThenCharges, ReleasesTwice, ReturnsAgain
from headworks.testing.suites.ledger_sessions import inside, opening
from headworks.testing.suites.ledger_subject import FIRST, reserve

LIMITS = tuple(Charge(scope, "tokens", 300) for scope in ("tenant:acme", "pool:pool"))


def opened(kind: type[Book] = Book) -> Book:
    book = kind(1_000_000, 1_000_000)
    book.apply([SetLimits("v", 1, LIMITS), Heartbeat(FIRST)], 1)
    return book


def stop(name: str) -> Stop:
    return Stop(name, FIRST, "E1", "completed", None)


def asked(book: Book, at_s: float, *commands: Command, process: int = 0) -> Asked:
    """Run now, asked half a second before and heard half a second later."""
    return Asked(process, commands, at_s - 0.5, at_s + 0.5, book.apply(commands, 1))


def random_history(seed: int, kind: type[Book] = Book, lost_ratio: float = 0.2) -> list[Asked]:
    """Three processes; some answers are lost, and some of what was lost was not run."""
    print(f"again: random_history({seed})")
    random, book, history = Random(seed), opened(kind), []
    names: list[str] = []
    for number in range(40):
        commands: list[Command] = []
        for part in range(random.randint(1, 3)):
            if names and random.random() < 0.4:
                commands.append(stop(random.choice(names)))
            elif random.random() < 0.5:
                session = f"session:pool/acme/key/{random.randrange(3)}"
                closing = CloseSession(session)
                asked_of_it = (opening(60, session), inside(f"i{number}-{part}", 20, session), closing, closing)
                commands.append(random.choice(asked_of_it))
                names += [command.execution for command in commands[-1:] if isinstance(command, Reserve) and not command.opens]
            else:
                names.append(f"x{number}-{part}")
                commands.append(reserve(names[-1], random.choice((60, 100, 150))))
        lost = random.random() < lost_ratio
        if lost and random.random() < 0.5:
            history.append(Asked(number % 3, commands, number - 0.5))
            continue
        one = asked(book, float(number), *commands, process=number % 3)
        history.append(Asked(one.process, one.commands, one.asked_s) if lost else one)
    random.shuffle(history)
    return history


@pytest.mark.parametrize("seed", range(20))
def test_A3_what_one_ledger_answered_has_a_witness(seed: int) -> None:
    history = random_history(seed)
    order = witness(history, opened())
    assert [one for one in order if one.answers] == sorted((one for one in history if one.answers), key=lambda one: one.first)


@pytest.mark.parametrize("kind", [ChecksThenCharges, ReleasesTwice, ReturnsAgain])
def test_A3_planted_ledgers_leave_histories_without_a_witness(kind: type[Book]) -> None:
    found = 0
    for seed in range(20):
        try:
            witness(random_history(seed, kind, lost_ratio=0.1), opened())
        except NoWitness:
            found += 1
    assert found >= 10


def test_A3_two_that_took_the_same_capacity_are_found() -> None:
    book = opened()
    one = asked(book, 1.0, reserve("a", 200))
    two = asked(book, 2.0, reserve("b", 200))
    assert two.answers is not None and two.answers[0].outcome == "refused"
    granted = replace(two, answers=[_granted(two.answers)])
    with pytest.raises(NoWitness, match="was answered granted RESERVED, a ledger says refused"):
        witness([one, granted], opened())


def _granted(answers: Sequence[Answer]) -> Answer:
    return Answer("reserve", "b", "granted", state="RESERVED", sequence=answers[0].sequence)


def test_A3_an_acknowledged_write_that_was_forgotten_is_found() -> None:
    book, forgetful = opened(), opened()
    one = asked(book, 1.0, reserve("a", 200))
    forgetful.apply([Heartbeat(FIRST)], 1)  # the same number of commands, and not this one
    two = asked(forgetful, 2.0, reserve("b", 200))
    with pytest.raises(NoWitness):
        witness([one, two], opened())


def test_A3_an_unanswered_list_is_placed_where_numbers_are_missing_and_nowhere_else() -> None:
    book = opened()
    lost = asked(book, 1.0, reserve("a", 200))
    never_ran = Asked(1, [reserve("c", 200)], 0.5)
    after = asked(book, 2.0, reserve("b", 200))
    assert after.answers is not None and after.answers[0].outcome == "refused"
    order = witness([after, never_ran, Asked(0, lost.commands, lost.asked_s)], opened())
    assert [one.commands[0].execution for one in order] in (["a", "b"], ["c", "b"])  # type: ignore[union-attr]


def test_A3_numbers_that_go_against_the_clock_are_found() -> None:
    book = opened()
    one = asked(book, 5.0, reserve("a", 100))
    two = asked(book, 1.0, reserve("b", 100))
    with pytest.raises(NoWitness, match="was answered before"):
        witness([one, two], opened())


def test_A3_commands_that_nobody_asked_are_found() -> None:
    book = opened()
    book.apply([reserve("ghost", 100)], 1)
    with pytest.raises(NoWitness, match="nobody asked"):
        witness([asked(book, 1.0, reserve("a", 100))], opened())


def test_what_is_certainly_held_is_counted_from_the_answer_to_the_wish_to_end() -> None:
    assert held_at_most([(1.0, 3.0, 100), (2.0, 4.0, 50), (3.0, 5.0, 100)]) == 150

"""The audit sees each way in which a book can contradict itself, and says where (A4, K07, K15)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headworks.core.book import Book
from headworks.core.book_parts import Entry
from headworks.core.book_sessions import OpenSession
from headworks.core.commands import Cancel, Claim, Floor, Heartbeat, Opening, SetLimits, Start, Stop
from headworks.core.types import Charge, RequestKey
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve
from tests.core.books import Asked

KEY = RequestKey("acme", "order-1")
READ = Charge("replica:pool/0", "prefill_tokens", 50)


def a_book() -> Book:
    """One of each: running with a key, closing, orphaned, claimed, ended; a floor, a quota and a session."""
    asked = Asked(FIRST, SECOND)
    limits = (
        *(Charge("pool:pool", "tokens", 1_000), Charge("tenant:acme", "tokens", 1_000), Charge("quota:acme", "tokens", 500)),
        Charge("sessions:pool", "tokens", 300),
    )
    floors = (Floor("model:small", "tokens", 40, "pool:pool"),)
    asked.ask(SetLimits("p", 2, limits, floors, (Charge("quota:acme", "tokens", 70),)))
    asked.ask(reserve("runs", 100, key=KEY), Start("runs", FIRST), reserve("closes", 20), Cancel("closes", FIRST))
    asked.ask(reserve("ended", 5), Stop("ended", FIRST, "E1", "completed", None), reserve("lost", 30, owner=SECOND))
    budget = tuple(Charge(scope, "tokens", 64) for scope in ("tenant:acme", "pool:pool", "sessions:pool"))
    opens = reserve("opens", 64, charges=budget)
    opens.session, opens.opens = "session:s", Opening(60_000, 60_000)
    assert asked.outcome(opens) == "opened"
    asked.advance(LEASE_MS, FIRST)
    asked.ask(Claim("claimed", RequestKey("acme", "order-2"), "same", FIRST))
    assert asked.state("lost") == "ORPHANED"
    return asked.book


def entry(book: Book, name: str) -> Entry:
    return book._entries[name]


def session(book: Book) -> OpenSession:
    return book._sessions["session:s"]


def counter(book: Book, scope: str) -> None:
    (found,) = book.counters.find([(scope, "tokens", 0)])
    found.held += 7


def kept(book: Book) -> None:
    (found,) = book.counters.find([("pool:pool", "tokens", 0)])
    found.kept -= 1


def negative(book: Book) -> None:
    entry(book, "closes").charges = (Charge("pool:other", "tokens", -3),)
    for scope in ("tenant:acme", "pool:pool", "replica:pool/0"):
        book.counters.move((scope,), "tokens", -20)
    book.counters.move(("replica:pool/0",), "requests", -1)
    book.counters.move(("pool:other",), "tokens", -3)


def over(book: Book) -> None:
    (found,) = book.counters.find([("pool:pool", "tokens", 0)])
    found.limit = 213


def uncounted(book: Book) -> None:
    del book.counters._counters["replica:pool/0", "requests"]


def unspent(book: Book) -> None:
    session(book).unspent_tokens -= 4
    book.counters.move(session(book).scopes, "tokens", -4)


def overspent(book: Book) -> None:
    session(book).spent_tokens = 65
    book.counters.move(session(book).scopes, "tokens", -64)
    session(book).unspent_tokens = 0


def returned(book: Book) -> None:
    session(book).returned_tokens = 65


def gone(book: Book) -> None:
    book._boots[FIRST].alive = False


def second(book: Book) -> None:
    entry(book, "closes").key = KEY


def forgotten(book: Book) -> None:
    book._keys[RequestKey("acme", "order-9")] = "nobody"


PLANTED: list[tuple[Callable[[Book], object], list[str]]] = [
    (lambda book: counter(book, "pool:pool"), ["pool:pool tokens: the counter says 221, its parts 214"]),
    (lambda book: counter(book, "quota:acme"), ["quota:acme tokens: the counter says 77, its parts 70"]),
    (kept, ["pool:pool tokens: 39 are kept free, by the floors {('pool:pool', 'tokens'): 40}"]),
    (
        negative,
        [
            "closes is charged -3 tokens on pool:other",
            "pool:other tokens is below zero: -3",
            "counters fell below zero 1 times",
        ],
    ),
    (over, ["pool:pool tokens: 214 held, 213 allowed, no excess recorded"]),
    (uncounted, ["replica:pool/0 requests: no counter for 3"]),
    (unspent, ["session:s: 60 unspent, of 64 spent 0 and live 0, open"]),
    (overspent, ["session:s: 65 of 64 spent, 0 returned"]),
    (returned, ["session:s: 0 of 64 spent, 65 returned"]),
    (
        lambda book: setattr(session(book), "ended", "closed"),
        ["session:s: 64 unspent, of 64 spent 0 and live 0, closed"],
    ),
    (
        lambda book: setattr(entry(book, "ended"), "state", "DONE"),
        ["ended is in no known state: DONE", "ended is DONE and due to be forgotten"],
    ),
    (
        lambda book: setattr(entry(book, "ended"), "state", ""),
        ["ended is in no known state: ", "ended is  and due to be forgotten"],
    ),
    (
        gone,
        [
            "runs is RUNNING though the lease of its owner is over",
            "closes is CANCELLING though the lease of its owner is over",
        ],
    ),
    (lambda book: setattr(entry(book, "runs"), "forget_ms", 1), ["runs is RUNNING and due to be forgotten"]),
    (lambda book: setattr(entry(book, "claimed"), "forget_ms", 1), ["claimed is CLAIMED and due to be forgotten"]),
    (lambda book: setattr(entry(book, "ended"), "forget_ms", 0), ["ended is COMPLETED and would be remembered for ever"]),
    (
        lambda book: book._boots[FIRST].entries.pop("runs"),
        ["runs is RUNNING and listed under the wrong boot or none"],
    ),
    (
        lambda book: book._boots[FIRST].entries.pop("claimed"),
        ["claimed is CLAIMED and listed under the wrong boot or none"],
    ),
    (
        lambda book: book._boots[FIRST].entries.update(ended=entry(book, "ended")),
        ["ended is COMPLETED and listed under the wrong boot or none"],
    ),
    (
        lambda book: book._replicas["pool/0"].entries.pop("closes"),
        ["closes is CANCELLING and listed on the wrong replica or none"],
    ),
    (
        lambda book: book._replicas["pool/0"].entries.update(ended=entry(book, "ended")),
        ["ended is COMPLETED and listed on the wrong replica or none"],
    ),
    (
        lambda book: book._orphans.pop("lost"),
        ["lost is ORPHANED and wrongly listed among the orphans or missing there"],
    ),
    (
        lambda book: book._orphans.update(runs=entry(book, "runs")),
        ["runs is RUNNING and wrongly listed among the orphans or missing there"],
    ),
    (
        lambda book: book._boots[FIRST].entries.update(ghost=entry(book, "runs")),
        ["ghost is listed and has no record"],
    ),
    (
        lambda book: book._replicas["pool/0"].entries.update(ghost=entry(book, "runs")),
        ["ghost is listed and has no record"],
    ),
    (
        second,
        ["key RequestKey(tenant='acme', request_id='order-1') has two executions charged: runs and closes"],
    ),
    (
        forgotten,
        ["key RequestKey(tenant='acme', request_id='order-9') points at nobody, which is forgotten"],
    ),
]


@pytest.mark.parametrize(
    ("plant", "said"), PLANTED, ids=[f"{number} {said[0][:30]}" for number, (_, said) in enumerate(PLANTED)]
)
def test_A4_the_audit_says_what_is_wrong(plant: Callable[[Book], object], said: list[str]) -> None:
    book = a_book()
    assert book.check() == []
    plant(book)
    assert book.check() == said


def test_A4_two_of_one_key_are_no_contradiction_where_one_was_only_told() -> None:
    book = a_book()
    second(book)
    entry(book, "closes").flow = None
    assert book.check() == []


def test_A4_a_session_that_has_ended_holds_nothing_and_returned_what_it_had() -> None:
    book = a_book()
    one = session(book)
    book._end_session(one, "closed")
    assert (one.returned_tokens, one.unspent_tokens, book.check()) == (64, 0, [])
    one.returned_tokens += 1
    assert book.check() == ["session:s: 0 of 64 spent, 65 returned"]
    one.returned_tokens, one.spent_tokens = 60, 10
    assert book.check() == ["session:s: 10 of 64 spent, 60 returned"]
    one.returned_tokens, one.spent_tokens = 0, -1
    assert book.check() == ["session:s: -1 of 64 spent, 0 returned"]


def test_A4_what_is_read_alone_may_be_above_its_limit_and_nothing_beside_it() -> None:
    asked = Asked(FIRST, limits=(Charge(READ.scope, READ.unit, 10),))
    assert asked.outcome(reserve("long", 5, charges=(READ,))) == "granted"
    assert asked.book.check() == []
    (found,) = asked.book.counters.find([READ])
    found.held += 1
    assert asked.book.check() == [
        "replica:pool/0 prefill_tokens: the counter says 51, its parts 50",
        "replica:pool/0 prefill_tokens: 51 held, 10 allowed, no excess recorded",
    ]


def test_K15_differences_are_told_by_kind_and_without_signs() -> None:
    book = a_book()
    none = {"pool": 0, "tenant": 0, "quota": 0, "sessions": 0, "model": 0, "replica": 0}
    assert book.differences() == none
    counter(book, "pool:pool")
    (found,) = book.counters.find([("tenant:acme", "tokens", 0)])
    found.held -= 5
    assert book.differences() == none | {"pool": 7, "tenant": 5}
    del book.counters._counters["replica:pool/0", "requests"]
    assert book.differences() == none | {"pool": 7, "tenant": 5, "replica": 3}
    session(book).unspent_tokens -= 2
    assert book.differences() == none | {"pool": 9, "tenant": 3, "replica": 3, "sessions": 2}
    del book.counters._counters["replica:pool/0", "tokens"]
    assert book.differences()["replica"] == 3 + 150


def test_F10_foreign_load_is_told_of_replicas_that_are_sampled() -> None:
    book = Book(LEASE_MS, REMEMBER_MS)
    book.apply([Heartbeat(FIRST)], 0)
    for name, load, off in (("a/0", 0, False), ("a/1", 3, False), ("a/2", 0, True), ("a/3", 9, True)):
        replica = book._open_replica(name)
        replica.reader = FIRST if name != "a/3" else None
        replica.foreign_load, replica.foreign = load, off
    assert book.foreign_loads() == {"a/0": 0, "a/1": 3, "a/2": 1}

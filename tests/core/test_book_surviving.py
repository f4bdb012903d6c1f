"""A book in two parts: what lives, and what has ended under clients' keys. Together they are the book again."""

from __future__ import annotations

import json
from typing import Any

from headworks.core.book import Book
from headworks.core.commands import Cancel, Claim, Stop
from headworks.core.types import RequestKey
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, reserve
from tests.core.books import Asked


def carried(asked: Asked, *parts: list[dict[str, Any]]) -> Asked:
    """Restored from its smaller snapshot and from what was told of the ended, as JSON."""
    value, ended = json.loads(json.dumps([asked.book.snapshot(with_ended=False), [one for part in parts for one in part]]))
    again = Asked()
    again.now_ms = asked.now_ms
    again.book = Book(LEASE_MS, REMEMBER_MS, records_max=asked.book._records_max)
    again.book.restore(value, ended=ended, replay=True)
    assert again.book.check() == []
    return again


def attempt(asked: Asked, execution: str, key: RequestKey, end: str) -> None:
    asked.ask(Claim(execution, key, "same", FIRST), reserve(execution, 10, key=key), Stop(execution, FIRST, "E1", end, None))


def test_A9_what_has_ended_is_told_once_and_only_names_of_what_nobody_can_repeat() -> None:
    asked, key = Asked(), RequestKey("acme", "order-1")
    attempt(asked, "keyed", key, "completed")
    first, count = asked.book.ended(0), asked.book.ended_count
    asked.ask(reserve("minted", 10), Stop("minted", FIRST, "E1", "completed", None), reserve("lives", 10))
    assert asked.book.ended(count) == []
    assert [entry["execution"] for entry in asked.book.snapshot(with_ended=False)["entries"]] == ["lives"]
    again = carried(asked, first)
    assert again.outcome(Claim("again", key, "same", FIRST)) == "replay"
    assert again.outcome(reserve("minted", 10)) == "dead"
    assert again.held() == 10


def test_A6_a_failed_attempt_that_was_followed_by_a_claim_given_back_leaves_its_key_free() -> None:
    """The claim took the key from the failed attempt; when it was given back nobody had it, and so it is after a restart."""
    asked, key = Asked(), RequestKey("acme", "order-1")
    attempt(asked, "failed", key, "failed")
    attempt(asked, "since", RequestKey("acme", "order-2"), "completed")
    first, count = asked.book.ended(0), asked.book.ended_count
    assert carried(asked, first).outcome(Claim("other", key, "other", FIRST)) == "conflict"
    asked.ask(Claim("claim", key, "same", FIRST), Cancel("claim", FIRST))
    for one in (asked, carried(asked, first, asked.book.ended(count))):
        assert one.outcome(Claim("other", key, "other", FIRST)) == "claimed"


def test_A6_what_a_full_book_forgot_early_does_not_come_back() -> None:
    asked = Asked(records_max=4)
    keys = [RequestKey("acme", f"order-{number}") for number in range(6)]
    parts, count = [], 0
    for number, key in enumerate(keys):
        asked.advance(1_000, FIRST)
        attempt(asked, f"x{number}", key, "completed")
        parts.append(asked.book.ended(count))
        count = asked.book.ended_count
    again = carried(asked, *parts)
    told = [asked.book.find(f"x{number}") for number in range(6)]
    assert [again.book.find(f"x{number}") for number in range(6)] == told
    assert told[0] is None
    assert told[5] is not None


def test_A9_a_restart_ends_every_lease_and_every_seat() -> None:
    asked = Asked()
    asked.ask(reserve("x", 10))
    again = carried(asked)
    again.book.orphan_all()
    assert again.state("x") == "ORPHANED"
    assert again.held() == 10
    assert again.outcome(reserve("y", 10)) == "fenced"

"""The local life of a request: its table, as the docs show it, and what a life says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headworks.core.book_table import MOVES as LEDGER
from headworks.core.book_table import VERBS
from headworks.core.life import (
    ASKED,
    CHARGED_HERE,
    CLAIMING,
    ENDED,
    LEAVING,
    MARKS_MAX,
    MOVES,
    MOVES_FROM,
    QUEUED,
    RUNNING,
    SENT,
    SETTLING,
    UNASKED,
    Life,
)
from headworks.core.types import Forecast, Usage, Work
from tests.core.driver import Bench, policy

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "life-of-a-request.md").read_text()
FORECAST = Forecast(None, 0.0, None, None, None, 1.0, "none")


def rows(head: str) -> list[list[str]]:
    """The rows of the page's table that begins so."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def a_life(propagates: bool = True) -> Life:
    bench = Bench(policy(propagate_cancel=propagates))
    lane = bench.gate._desk.lane("acme", "interactive", "p")
    return Life(bench.request(10), 7, lane, Work(10, 9, 1, 0.0, 10, 1), FORECAST)


def test_A4_the_table_is_the_one_that_the_docs_show() -> None:
    assert {(state, what): then for state, what, then, _ in rows("| state | what happened")} == MOVES
    assert {state: {what: MOVES[one, what] for one, what in MOVES if one == state} for state in STATES} == MOVES_FROM
    assert MOVES_FROM[ENDED] == {}


STATES = (CLAIMING, QUEUED, ASKED, UNASKED, SENT, RUNNING, LEAVING, SETTLING, ENDED)


def test_A4_states_have_the_names_that_the_docs_use_and_six_of_them_count() -> None:
    names = ("claiming", "queued", "asked", "unasked", "sent", "running", "leaving", "settling", "ended")
    assert names == STATES
    assert {"asked", "unasked", "sent", "running", "leaving", "settling"} == CHARGED_HERE


def test_A4_the_ledgers_table_is_the_one_that_the_docs_show() -> None:
    shown = {}
    for state, *cells in rows("| state | reserve"):
        for verb, cell in zip(VERBS, cells, strict=True):
            if cell:
                shown[state if state != "unknown" else "", verb] = cell
    assert shown == {(state, verb): told(move) for state, row in LEDGER.items() for verb, move in row.items()}


def told(move: object) -> str:
    ends, outcome, state = move.ends, move.outcome, move.state  # type: ignore[attr-defined]
    if ends:
        return " / ".join(dict.fromkeys(ends.values()))
    return f"{outcome} → {state}" if state else outcome


def test_the_page_has_both_tables() -> None:
    assert len(rows("| state | what happened")) == 39
    assert len(rows("| state | reserve")) == 11
    assert re.search(r"Charged in RESERVED, RUNNING, CANCELLING and ORPHANED and in no other", PAGE)


@pytest.mark.parametrize(
    ("usage", "evidence", "used_tokens"),
    [
        (Usage(30, 10, 4, 0.0, "stop", True), "E1", 34),
        (Usage(30, 10, 4, 0.0, "stop", True), "", 34),
        (None, "", 0),
        (None, "E0", 0),
        (None, "E3a", 50),
    ],
)
def test_D1_of_a_turn_was_used_what_the_engine_counted_or_nothing_or_all(
    usage: Usage | None, evidence: str, used_tokens: int
) -> None:
    life = a_life()
    life.turn_tokens, life.usage, life.evidence = 50, usage, evidence
    assert life.used_tokens() == used_tokens


def test_a_life_begins_with_nothing() -> None:
    life = a_life()
    assert (life.state, life.number, life.subscribers, life.wanted) == ("queued", 7, ["r1"], True)
    assert (life.timer_s, life.timed_s, life.unread_until_s) == (float("inf"), float("inf"), -float("inf"))
    assert (life.ask_late_s, life.growing_late_s) == (0.0, 0.0)
    numbers = (life.timer_number, life.batch, life.ahead_tokens, life.opening_tokens, life.reading_tokens, life.turn_tokens)
    assert numbers == (0, 0, 0, 0, 0, 0)
    assert (life.output_tokens, life.spare_tokens, life.growths, life.growths_refused) == (0, 0, 0, 0)
    assert (life.claim, life.blocked_by, life.evidence, life.end_reason, life.retry_kind) == ("", "", "", "", "")
    flags = (life.failed, life.reported, life.assembled, life.growth_refused, life.cut, life.is_held, life.was_held)
    assert flags == (False,) * 7
    assert (life.preempts, life.reads, life.lacks, life.drawn, life.rows) == (False, (), (), (), [])
    assert (life.execution.id, life.execution.replica) == ("", "")
    assert (life.decided, life.decision, life.variant, life.replica, life.ask, life.growing) == (None,) * 6
    assert (life.sharers, life.shortfall, life.quota, life.usage, life.marks, life.told_s) == (None,) * 6
    assert (life.admitted_s, life.sent_s, life.first_byte_s, life.leaving_s) == (None,) * 4
    life.subscribers.clear()
    assert life.wanted is False


def test_what_led_to_a_stream_is_let_go_of_when_it_begins() -> None:
    life = a_life()
    life.rows = [("time", "pool:p", 1, 2, "s", "")]
    life.request.stream = False
    life.begin(3.5)
    assert (life.first_byte_s, len(life.rows), life.streamed) == (3.5, 1, False)
    life.assembled = True
    assert life.streamed is True
    life.request.stream, life.assembled = True, False
    life.begin(4.0)
    assert (life.first_byte_s, life.rows, life.decision, life.streamed) == (4.0, [], None, True)


def test_the_last_hundred_marks_are_kept_and_the_newest() -> None:
    life = a_life()
    for number in range(MARKS_MAX + 5):
        life.mark(float(number), number)
    assert life.marks is not None
    assert (MARKS_MAX, len(life.marks), life.marks[0], life.marks[-1]) == (100, 101, (4.0, 4), (104.0, 104))


@pytest.mark.parametrize(
    ("state", "propagates", "stops"),
    [("sent", True, True), ("sent", False, False), ("running", False, False), ("queued", False, False), ("asked", False, True)],
)
def test_D3_unwanted_work_goes_on_only_where_a_naive_discipline_wants_it(state: str, propagates: bool, stops: bool) -> None:
    life = a_life(propagates)
    life.state = state
    assert life.stops_unwanted() is stops

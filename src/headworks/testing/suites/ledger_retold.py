"""What is told to a ledger again by who owns it: after its lease was over, and where an older copy came back (A7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headworks.core.commands import Adopt, Depart, Heartbeat, Reassert, Start, Stop
from headworks.core.types import Reservation
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, RESTARTED, SECOND, WHOLE, Ledger, Opened, reserve

SCOPES = {"pool:pool": WHOLE, "tenant:acme": WHOLE, "tenant:beta": WHOLE}


def case_A7_owner_takes_back_what_nobody_adopted(opened: Opened) -> None:
    """A gateway that was cut off for longer than its lease goes on where nobody stepped in."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    ledger.ask(reserve("mine", 100), Start("mine", FIRST), reserve("taken", 200), Start("taken", FIRST))
    mine, taken = ledger.records(FIRST)["mine"], ledger.records(FIRST)["taken"]
    ledger.ask(Depart(SECOND))
    ledger.advance(LEASE_MS)
    assert ledger.outcome(Reassert(mine)) == "fenced"
    ledger.ask(Heartbeat(FIRST))
    assert ledger.one(Reassert(mine)).state == "RUNNING"
    ledger.advance(LEASE_MS, RESTARTED)
    assert [record.execution for record in ledger.one(Adopt(RESTARTED, 1)).records] == ["taken"]
    ledger.ask(Heartbeat(FIRST))
    assert ledger.outcome(Reassert(taken)) == "refused"
    assert ledger.one(Reassert(mine)).state == "RUNNING"
    assert ledger.held("pool:pool") == 300


def case_A7_what_grew_in_a_ledger_that_is_gone_is_charged_when_it_is_told(opened: Opened) -> None:
    """An older copy has what was reserved; its owner tells what was granted since then, twice, and after its lease was over."""
    ledger = Ledger(opened)
    ledger.open({"pool:pool": 60, "tenant:acme": WHOLE}, FIRST, SECOND)
    ledger.ask(reserve("x", 40), Start("x", FIRST))
    record = ledger.records(FIRST)["x"]
    assert ledger.outcome(Reassert(grown(record, 16))) == ledger.outcome(Reassert(grown(record, 16))) == "recorded"
    assert (ledger.held("pool:pool"), ledger.held("tenant:acme")) == (56, 56)
    ledger.advance(LEASE_MS, SECOND)
    assert ledger.ask(Heartbeat(FIRST), Reassert(grown(record, 32)))[1].state == "RUNNING"
    assert (ledger.held("tenant:acme"), ledger.outcome(Reassert(record))) == (72, "recorded")
    assert [ledger.records(FIRST)["x"].charges, opened.check()] == [grown(record, 32).charges, []], (
        "above the limit, and in full"
    )
    ledger.ask(Stop("x", FIRST, "E1", "completed", None))
    assert (ledger.held("pool:pool"), ledger.held("tenant:acme"), opened.check()) == (0, 0, [])


def grown(record: Reservation, tokens: int) -> Reservation:
    """With so many more in each scope."""
    charges = tuple(one._replace(amount=one.amount + tokens) if one.unit == "tokens" else one for one in record.charges)
    return replace(record, charges=charges)


RETOLD_CASES: tuple[Callable[[Opened], None], ...] = (
    case_A7_owner_takes_back_what_nobody_adopted,
    case_A7_what_grew_in_a_ledger_that_is_gone_is_charged_when_it_is_told,
)

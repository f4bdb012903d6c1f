"""The ledger's state table, row by row, with what must come of each command written out (A4).

It repeats `core/book_table.py` on purpose: that one is the code, this one the expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headworks.core.commands import Adopt, Cancel, Claim, Command, Grow, Heartbeat, Reassert, Start, Stop
from headworks.core.types import Charge, RequestKey, Reservation
from headworks.testing.suites.ledger_subject import (
    FIRST,
    LEASE_MS,
    SECOND,
    WHOLE,
    Ledger,
    Opened,
    reserve,
)

TOKENS = 100

COMMANDS: dict[str, Callable[[str, RequestKey, Reservation], Command]] = {
    "reserve": lambda name, key, told: reserve(name, TOKENS, key=key),
    "start": lambda name, key, told: Start(name, FIRST),
    "grow": lambda name, key, told: Grow(name, FIRST, 1, (Charge("pool:pool", "tokens", 1),)),
    "cancel": lambda name, key, told: Cancel(name, FIRST),
    "E0 cancelled": lambda name, key, told: Stop(name, FIRST, "E0", "cancelled", None),
    "E0 failed": lambda name, key, told: Stop(name, FIRST, "E0", "failed", None),
    "E0 by another": lambda name, key, told: Stop(name, SECOND, "E0", "cancelled", None),
    "E1 completed": lambda name, key, told: Stop(name, FIRST, "E1", "completed", None),
    "E1 failed": lambda name, key, told: Stop(name, SECOND, "E1", "failed", None),
    "E3a cancelled": lambda name, key, told: Stop(name, SECOND, "E3a", "cancelled", None),
    "E4 failed": lambda name, key, told: Stop(name, SECOND, "E4", "failed", None),
    "reassert": lambda name, key, told: Reassert(replace(told, execution=name, key=key)),
    "reassert by another": lambda name, key, told: Reassert(replace(told, execution=name, key=key, owner=SECOND)),
}

SETUPS: dict[str, tuple[str, ...]] = {
    "unknown": (),
    "CLAIMED": ("claim",),
    "RESERVED": ("reserve",),
    "RUNNING": ("reserve", "start"),
    "CANCELLING": ("reserve", "cancel"),
    "CANCELLING seen": ("reserve", "start", "cancel"),
    "ORPHANED": ("reserve", "lapse"),
    "ORPHANED seen": ("reserve", "start", "lapse"),
    "COMPLETED": ("reserve", "E1 completed"),
    "FAILED": ("reserve", "E1 failed"),
    "CANCELLED": ("reserve", "E0 cancelled"),
    "TOMBSTONE": ("cancel",),
    "STOPPED": ("E0 cancelled",),
}

_ENDED = {
    "reserve": "dead",
    "start": "recorded",
    "grow": "dead",
    "cancel": "recorded",
    "E0 cancelled": "recorded",
    "E1 completed": "recorded",
    "E3a cancelled": "recorded",
    "lapse": "same",
    "reassert": "refused",
}

ROWS: dict[str, dict[str, str]] = {
    # state → command → outcome and, where it moves, the state afterwards
    "unknown": {
        "reserve": "granted RESERVED",
        "start": "refused",
        "grow": "refused",
        "cancel": "ok TOMBSTONE",
        "E0 cancelled": "ok STOPPED",
        "E1 completed": "ok STOPPED",
        "E3a cancelled": "ok STOPPED",
        "reassert": "ok RUNNING",
    },
    "CLAIMED": {
        "reserve": "granted RESERVED",
        "start": "refused",
        "grow": "refused",
        "cancel": "ok TOMBSTONE",
        "E0 cancelled": "ok STOPPED",
        "E1 completed": "ok STOPPED",
        "lapse": "same unknown",
        "reassert": "recorded",
        "reassert by another": "refused",
    },
    "RESERVED": {
        "reserve": "recorded",
        "start": "ok RUNNING",
        "grow": "granted",
        "cancel": "ok CANCELLING",
        "E0 cancelled": "ok CANCELLED",
        "E0 failed": "ok FAILED",
        "E0 by another": "refused",
        "E1 completed": "ok COMPLETED",
        "E1 failed": "ok FAILED",
        "E4 failed": "ok FAILED",
        "lapse": "same ORPHANED",
        "reassert": "recorded",
        "reassert by another": "refused",
    },
    "RUNNING": {
        "reserve": "recorded",
        "start": "recorded",
        "grow": "granted",
        "cancel": "ok CANCELLING",
        "E0 cancelled": "refused",
        "E1 completed": "ok COMPLETED",
        "E1 failed": "ok FAILED",
        "E4 failed": "ok FAILED",
        "lapse": "same ORPHANED",
        "reassert": "recorded",
        "reassert by another": "refused",
    },
    "CANCELLING": {
        "reserve": "dead",
        "start": "ok",
        "grow": "refused",
        "cancel": "recorded",
        "E0 cancelled": "ok CANCELLED",
        "E0 failed": "ok CANCELLED",
        "E0 by another": "refused",
        "E1 completed": "ok COMPLETED",
        "E1 failed": "ok FAILED",
        "E3a cancelled": "ok CANCELLED",
        "E4 failed": "ok CANCELLED",
        "lapse": "same ORPHANED",
        "reassert": "recorded",
        "reassert by another": "refused",
    },
    "CANCELLING seen": {"start": "recorded", "E0 cancelled": "refused", "E3a cancelled": "ok CANCELLED"},
    "ORPHANED": {
        "reserve": "dead",
        "start": "ok",
        "grow": "refused",
        "cancel": "recorded",
        "E0 cancelled": "ok CANCELLED",
        "E0 by another": "refused",
        "E1 completed": "ok COMPLETED",
        "E1 failed": "ok FAILED",
        "E3a cancelled": "ok CANCELLED",
        "lapse": "same",
        "adopt": "ok CANCELLING",
        "reassert": "ok RESERVED",
        "reassert by another": "refused",
    },
    "ORPHANED seen": {"start": "recorded", "E0 cancelled": "refused", "reassert": "ok RUNNING"},
    "COMPLETED": _ENDED,
    "FAILED": _ENDED,
    "CANCELLED": _ENDED,
    "TOMBSTONE": {
        "reserve": "dead",
        "start": "recorded",
        "grow": "dead",
        "cancel": "recorded",
        "E0 cancelled": "ok STOPPED",
        "E1 completed": "ok STOPPED",
        "lapse": "same",
        "reassert": "ok CANCELLING",
    },
    "STOPPED": _ENDED,
}
CHARGED = ("RESERVED", "RUNNING", "CANCELLING", "CANCELLING seen", "ORPHANED", "ORPHANED seen")


def check_rows(opened: Opened) -> None:
    """Every row and every column, each on an execution of its own."""
    ledger = Ledger(opened)
    ledger.open({"pool:pool": WHOLE}, FIRST, SECOND)
    ledger.ask(reserve("told", TOKENS), Start("told", FIRST))
    told = ledger.records(FIRST)["told"]
    ledger.ask(Stop("told", FIRST, "E1", "completed", None))
    for number, (before, command) in enumerate((row, column) for row in ROWS for column in ROWS[row]):
        _check_cell(ledger, f"x{number}", before, command, told)


def _check_cell(ledger: Ledger, name: str, before: str, command: str, told: Reservation) -> None:
    cell = f"{before} and {command}"
    key = RequestKey("acme", name)
    for step in SETUPS[before]:
        _do(ledger, step, name, key, told)
    outcome, _, after = ROWS[before][command].partition(" ")
    assert ledger.held("pool:pool") == (TOKENS if before in CHARGED else 0), cell
    assert _do(ledger, command, name, key, told) == outcome, cell
    state = ledger.state(name, FIRST, SECOND) or "unknown"
    expected = after or before.removesuffix(" seen")
    assert state == expected, f"{cell}: {state}, not {expected}"
    grown = command == "grow" and outcome == "granted"
    charged_tokens = TOKENS + grown if expected in CHARGED else 0
    assert ledger.held("pool:pool") == charged_tokens, cell
    assert ledger.opened.check() == [], cell
    ledger.ask(Stop(name, FIRST, "operator", "failed", None))


def _do(ledger: Ledger, step: str, name: str, key: RequestKey, told: Reservation) -> str:
    if step == "claim":
        return ledger.outcome(Claim(name, key, "same", FIRST))
    if step == "lapse":  # and the boot comes back at once, so that only the orphans tell of it
        ledger.advance(LEASE_MS, SECOND)
        ledger.ask(Heartbeat(FIRST))
        return "same"
    if step == "adopt":
        ledger.advance(LEASE_MS, SECOND)
        outcome = ledger.outcome(Adopt(SECOND))
        ledger.ask(Heartbeat(FIRST))
        return outcome
    return ledger.outcome(COMMANDS[step](name, key, told))

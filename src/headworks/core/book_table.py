"""The ledger's states and moves as data: what each command does to an execution in each state (A4).

`book.py` looks a row up and does what it says. A move that is not here changes nothing and is counted. Docs and tests are
made from these rows; whoever changes one changes the contract every store is held to.

An execution is *charged* in four states and in no other. Charges come back on one edge only: charged → terminal;
save what was held for the reading of a prompt alone, which `start` gives back (`types.READ_UNITS`).
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = ""
CLAIMED = "CLAIMED"
RESERVED = "RESERVED"
RUNNING = "RUNNING"
CANCELLING = "CANCELLING"
ORPHANED = "ORPHANED"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
TOMBSTONE = "TOMBSTONE"
"""Cancelled before the ledger knew of it, or when only its key was claimed: no reserve may charge it any more."""
STOPPED = "STOPPED"
"""A tombstone with testimony that the execution does not run: not even a reassert may charge it."""

CHARGED = (RESERVED, RUNNING, CANCELLING, ORPHANED)
TERMINAL = (COMPLETED, FAILED, CANCELLED, TOMBSTONE, STOPPED)

STOP_UNSENT = "stop(E0)"
STOP_IN_BAND = "stop(E1)"
STOP_PROVED = "stop(other)"
STOP_VERBS = {"E0": STOP_UNSENT, "E1": STOP_IN_BAND}
"""Evidence level → column of the table; every other level stands in `STOP_PROVED`."""

VERBS = ("reserve", "start", "grow", "cancel", STOP_UNSENT, STOP_IN_BAND, STOP_PROVED, "lapse", "adopt", "reassert")


@dataclass(slots=True)
class Move:
    """One cell. `act` names the method of the book that carries it out, `outcome` what the answer says."""

    act: str
    outcome: str
    state: str = ""
    """The state afterwards; empty where it stays."""
    ends: dict[str, str] | None = None
    """For a stop: what it says the end was → the terminal state."""


REFUSE = Move("refuse", "refused")
_RECORD = Move("record", "recorded")
_DEAD = Move("record", "dead")
_BURY = Move("bury", "ok", TOMBSTONE)
_BURY_STOPPED = Move("bury", "ok", STOPPED)
_CLOSE = Move("close", "ok", CANCELLING)
_ORPHAN = Move("orphan", "ok", ORPHANED)
_SEE = Move("see", "ok")
_CONFIRM_CHARGE = Move("confirm_charge", "recorded")
_CONFIRM = Move("confirm", "recorded")
_UNSENT = Move("end", "ok", ends={"completed": FAILED, "failed": FAILED, "cancelled": CANCELLED})
_ENDED = Move("end", "ok", ends={"completed": COMPLETED, "failed": FAILED, "cancelled": FAILED})
_ENDED_UNWANTED = Move("end", "ok", ends={"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED})
_STOPPED_UNWANTED = Move("end", "ok", ends={"completed": CANCELLED, "failed": CANCELLED, "cancelled": CANCELLED})
_OVER = {
    "reserve": _DEAD,
    "start": _RECORD,
    "grow": _DEAD,
    "cancel": _RECORD,
    STOP_UNSENT: _RECORD,
    STOP_IN_BAND: _RECORD,
    STOP_PROVED: _RECORD,
    "reassert": Move("confirm_end", "recorded"),
}

MOVES: dict[str, dict[str, Move]] = {
    UNKNOWN: {
        "reserve": Move("charge", "granted", RESERVED),
        "cancel": _BURY,
        STOP_UNSENT: _BURY_STOPPED,
        STOP_IN_BAND: _BURY_STOPPED,
        STOP_PROVED: _BURY_STOPPED,
        "reassert": Move("believe", "ok"),
    },
    CLAIMED: {
        "reserve": Move("charge", "granted", RESERVED),
        "cancel": _BURY,
        STOP_UNSENT: _BURY_STOPPED,
        STOP_IN_BAND: _BURY_STOPPED,
        STOP_PROVED: _BURY_STOPPED,
        "lapse": Move("forget", "ok"),
        "reassert": _CONFIRM,
    },
    RESERVED: {
        "reserve": _CONFIRM_CHARGE,
        "start": Move("see", "ok", RUNNING),
        "grow": Move("grow", "granted"),
        "cancel": _CLOSE,
        STOP_UNSENT: _UNSENT,
        STOP_IN_BAND: _ENDED,
        STOP_PROVED: _ENDED,
        "lapse": _ORPHAN,
        "reassert": _CONFIRM,
    },
    RUNNING: {
        "reserve": _CONFIRM_CHARGE,
        "start": _RECORD,
        "grow": Move("grow", "granted"),
        "cancel": _CLOSE,
        STOP_IN_BAND: _ENDED,
        STOP_PROVED: _ENDED,
        "lapse": _ORPHAN,
        "reassert": _CONFIRM,
    },
    CANCELLING: {
        # A grant whose answer was lost must not be sent any more: `dead`, here and in ORPHANED.
        "reserve": _DEAD,
        "start": _SEE,
        "cancel": _RECORD,
        STOP_UNSENT: _STOPPED_UNWANTED,
        STOP_IN_BAND: _ENDED_UNWANTED,
        STOP_PROVED: _STOPPED_UNWANTED,
        "lapse": _ORPHAN,
        "reassert": _CONFIRM,
    },
    ORPHANED: {
        "reserve": _DEAD,
        "start": _SEE,
        # It stays an orphan; but should its owner take it back, it comes back unwanted.
        "cancel": Move("close_orphan", "recorded"),
        STOP_UNSENT: _STOPPED_UNWANTED,
        STOP_IN_BAND: _ENDED_UNWANTED,
        STOP_PROVED: _STOPPED_UNWANTED,
        "adopt": Move("take_over", "ok", CANCELLING),
        "reassert": Move("take_back", "ok"),
    },
    COMPLETED: _OVER,
    FAILED: _OVER,
    CANCELLED: _OVER,
    TOMBSTONE: {
        **_OVER,
        # Testimony makes the tombstone final. Without it, a store that forgot believes an owner who says it still runs.
        STOP_UNSENT: _BURY_STOPPED,
        STOP_IN_BAND: _BURY_STOPPED,
        STOP_PROVED: _BURY_STOPPED,
        "reassert": Move("believe", "ok"),
    },
    STOPPED: _OVER,
}
"""State → verb → move. A cell that is not here is `REFUSE`."""

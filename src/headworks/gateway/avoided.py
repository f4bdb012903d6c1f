"""Work that was not done because nobody could have used its answer: what refusing in time and telling the engine save (F7).

Three kinds. A request that was refused since its answer would have come too late, or whose time was over while it waited. One
whose client left before it was sent. And of one whose client left later, what it had reserved and did not come to use; that
is in the line of its execution, the first two are summed up here by client and model.

What it would have cost is an estimate: as many tokens as it would have reserved, at what a reserved token has cost in its pool.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headworks.core.effects import Outcome

LINES_S = 10.0
CLIENTS_MAX = 4_096
"""Clients and models that are told apart in one interval; beyond, they are written down at once."""
TOO_LATE = frozenset({"queue_delay_exceeded", "queue_delay_and_kv_saturation", "queue_timeout", "deadline_exceeded"})
UNWANTED = frozenset({"cancelled", "failed", "expired"})
"""Ends of executions whose answer nobody got in full."""
UNSENT = frozenset({"refused", "expired"})
About = tuple[str, str, str, str]
"""Tenant, client, model and pool."""


def ran(outcome: Outcome) -> bool:
    """It was sent, whatever became of it."""
    return outcome.admitted_s is not None and outcome.evidence not in ("", "E0")


def is_avoided(outcome: Outcome) -> bool:
    """It was not sent, and its answer would have been of no use to anybody."""
    if ran(outcome):
        return False
    return outcome.outcome == "cancelled" or (outcome.outcome in UNSENT and outcome.reason in TOO_LATE)


class AvoidedWork:
    """Sums it up, and puts it down every few seconds."""

    def __init__(self) -> None:
        self._sums: dict[About, tuple[int, int]] = {}
        self._next_utc_s = 0.0
        self.is_due = False
        """It is written down at the next look, whatever the time."""

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """So many more."""
        for one in outcomes:
            about = one.key.tenant, one.client, one.model, one.pool
            requests, tokens = self._sums.get(about, (0, 0))
            self._sums[about] = requests + 1, tokens + one.work.tokens

    def lines(self, utc_s: float) -> bytes:
        """What has come together since the last lines, if it is time for some."""
        if not self._sums or (utc_s < self._next_utc_s and not self.is_due and len(self._sums) < CLIENTS_MAX):
            return b""
        self._next_utc_s = utc_s + LINES_S
        sums, self._sums = self._sums, {}
        return b"".join(_line(about, requests, tokens, utc_s) for about, (requests, tokens) in sums.items())


def _line(about: About, requests: int, tokens: int, utc_s: float) -> bytes:
    tenant, client, model, pool = about
    known = {"tenant": tenant, "client": client, "model": model, "pool": pool}
    return (
        msgspec.json.encode({**known, "avoided_requests": requests, "avoided_tokens": tokens, "at_utc_s": round(utc_s, 3)})
        + b"\n"
    )

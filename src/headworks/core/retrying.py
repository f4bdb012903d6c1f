"""Our own second tries upstream, where nothing of the first can run (B15).

A request that found nobody listening, or an engine that said it was busy, has not begun anywhere: it may be sent again, here or
to another replica, at its old place and with its old deadline. That must not amplify: while every engine refuses, each request
would otherwise be sent again and again. So a pool's tries are paid from a credit that its first tries bring in,

    tries <= first tries × (1 + ratio_max) + RETRIES_FREE        at every moment, whatever the engines answer.

Who finds the credit used up is answered as it would have been with its time over. What was stopped by the gateway's own lease
was never tried, and costs nothing. Clients' retries have a budget of their own (`buckets.RetryBudget`).
"""

from __future__ import annotations

from headworks.core.buckets import DIGITS, RETRIES_FREE
from headworks.core.life import Life

CREDIT_MAX = 100.0
"""A long calm saves up for so many retries and no more."""


class UpstreamRetries:
    """The credit of one pool."""

    __slots__ = ("_credit", "_firsts_seen", "ratio", "retried", "sent")

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.sent = 0
        """Executions that were sent, second tries among them."""
        self.retried = 0
        self._firsts_seen = 0
        self._credit = float(RETRIES_FREE)

    def spend(self) -> bool:
        """One is to be sent again. Whether it may be; it is counted only if it may."""
        firsts = self.sent - self.retried
        earned = self.ratio * (firsts - self._firsts_seen)
        self._firsts_seen = firsts
        self._credit = min(CREDIT_MAX, round(self._credit + earned, DIGITS))
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        self.retried += 1
        return True


def heir_of(life: Life) -> Life:
    """The same arrival as a new attempt, with everybody who waits for it; the old one is only settled any more."""
    heir = Life(life.request, life.number, life.lane, life.work, life.forecast)
    heir.rows, heir.start_by_s, heir.blocked_by = life.rows, life.start_by_s, life.end_reason
    heir.subscribers, life.subscribers = life.subscribers, []
    heir.sharers, life.sharers = life.sharers, None
    heir.drawn, life.drawn, heir.retry_kind = life.drawn, (), life.retry_kind
    heir.variant, heir.decision, heir.told_s = life.variant, life.decision, life.told_s
    life.reported = True
    return heir

"""What our own second tries upstream may come to, where nothing of the first can run (B15).

A request that found nobody listening, or an engine that said it was busy, has not begun anywhere; one that broke off before
its client heard of it may be proved to have stopped. Either may be sent again, here or to another replica, at its old place and
with its old deadline (`core/second_tries.py`). That must not amplify: while every engine refuses, each request would otherwise
be sent again and again. So a pool's tries are paid from a credit that its first tries bring in,

    tries <= first tries × (1 + ratio_max) + RETRIES_FREE        at every moment, whatever the engines answer.

Who finds the credit used up is answered as it would have been with its time over. What was stopped by the gateway's own lease
was never tried, and costs nothing. Clients' retries have a budget of their own (`buckets.RetryBudget`).
"""

from __future__ import annotations

from headworks.core.buckets import DIGITS, RETRIES_FREE

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

    def give_back(self) -> None:
        """What was spent on one that is not sent again after all."""
        self._credit = min(CREDIT_MAX, self._credit + 1.0)
        self.retried -= 1

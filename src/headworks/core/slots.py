"""Return slots: refused clients come back as a schedule, not as a wave (B2, B15).

A refusal with a retry hands out the time W_est + (work of slots still open) ÷ drain. Each slot pushes the next one
further out, so that the returns arrive at the rate the pool drains. A slot gives no capacity and no place.
"""

from __future__ import annotations

from heapq import heappop, heappush

SLOTS_MAX = 100_000
"""Beyond, further refusals share the last slot's time: the table stays bounded, the wave is told not to retry anyway."""
GRACE_S = 2.0
"""A slot counts as open until this long after it is due: the client may still be on its way."""
UNKNOWN_S = 1.0
"""Given out while no drain rate is known yet, spread by `UNKNOWN_STEP_S` a slot."""
UNKNOWN_STEP_S = 0.05


class ReturnSlots:
    """The open slots of one pool: when they are due and how much work they bring back, for each queue that drains by itself."""

    __slots__ = ("_open", "_tokens_of", "tokens")

    def __init__(self) -> None:
        self._open: list[tuple[float, int, str]] = []
        self._tokens_of: dict[str, int] = {}
        self.tokens = 0

    def give(
        self,
        wait_s: float | None,
        tokens: int,
        drain_tokens_per_s: float | None,
        horizon_s: float,
        now_s: float,
        queue: str = "",
    ) -> float:
        """Seconds until this client should come back. Beyond the horizon it will not, and no work is booked for it.

        `queue`: whose turn it will wait for then; `drain_tokens_per_s` is the rate of that.
        """
        slot_s = self.next_s(wait_s, drain_tokens_per_s, now_s, queue)
        if slot_s <= horizon_s and len(self._open) < SLOTS_MAX:
            heappush(self._open, (now_s + slot_s + GRACE_S, tokens, queue))
            self.tokens += tokens
            self._tokens_of[queue] = self._tokens_of.get(queue, 0) + tokens
        return slot_s

    def next_s(self, wait_s: float | None, drain_tokens_per_s: float | None, now_s: float, queue: str = "") -> float:
        """The slot that would be given."""
        self._close_due(now_s)
        if wait_s is None or not drain_tokens_per_s:
            return UNKNOWN_S + UNKNOWN_STEP_S * len(self._open)
        return wait_s + self._tokens_of.get(queue, 0) / drain_tokens_per_s

    def _close_due(self, now_s: float) -> None:
        while self._open and self._open[0][0] <= now_s:
            _, tokens, queue = heappop(self._open)
            self.tokens -= tokens
            self._tokens_of[queue] -= tokens

    def __len__(self) -> int:
        return len(self._open)

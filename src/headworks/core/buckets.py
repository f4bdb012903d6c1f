"""Token buckets that may go into debt (B5), and what a client's retries may cost (B15).

A bucket holds up to `burst`, refills at `per_s`, and may be drawn below zero by up to `debt_max`:

    level(t) = min(burst, level(t0) + per_s · (t - t0))
    n is granted when  (burst - level) + n  <=  burst + debt_max

Debt is nothing but a level below zero, so refill pays it first. What has been drawn stands on the left and what may be
drawn on the right, which is how a verdict compares them. A request draws its estimate when it is let in and is corrected
by its actual tokens when it ends; a correction may push the level below the ceiling, and then it is paid off like any debt.

Somebody refused is told when the bucket will have refilled *for him*: after everybody who was told so before and has not
come back yet. Otherwise all who were refused in one instant would return in one instant.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil

BURST_S = 10.0
"""A bucket whose size is not stated holds what comes back in so many seconds, and at least one."""
PROMISES_MAX = 10_000
"""Returns a bucket remembers; beyond, further refusals share the last one's time."""
DIGITS = 6
"""Amounts are compared at this resolution: a refill over a sum of times misses the last digits."""
SCALE = 1e6
"""The same as a factor: `round` finds its digits by way of a text, and every request with a rate is compared four times."""
BUDGET_S = 30.0
"""A retry budget looks back over the running half minute and the one before."""
RETRIES_FREE = 3
"""Retries in that time that nobody is blamed for: a share of few requests is less than one retry."""
WINDOW_S = 1.0
EARLY_S = 0.1
"""A return is in its window from this much before the slot's second until the second after it has passed."""


class Bucket:
    """One bucket, of tokens or of requests."""

    __slots__ = ("_at_s", "_level", "_promised", "_promises", "burst", "debt_max", "per_s")

    def __init__(self, per_s: float, burst: int | None, debt_max: int) -> None:
        self.per_s = per_s
        self.burst = size(per_s, burst)
        self.debt_max = debt_max
        self._level = float(self.burst)
        self._at_s = 0.0
        self._promises: list[tuple[float, int]] = []
        """(due, amount), the earliest first: what was given back in between makes a later promise due earlier."""
        self._promised = 0

    @property
    def limit(self) -> int:
        """What may be drawn at most, debt included."""
        return self.burst + self.debt_max

    def level(self, now_s: float) -> float:
        """What is in it; below zero is debt."""
        refilled = self._level + max(0.0, now_s - self._at_s) * self.per_s
        return refilled if refilled < self.burst else float(self.burst)

    def drawn_with(self, amount: int, now_s: float) -> float:
        """What would be drawn with this as well. It is granted when that is not above `limit`."""
        return int((self.burst - self.level(now_s) + amount) * SCALE + 0.5) / SCALE

    def draw(self, amount: int, now_s: float) -> None:
        """Take it out, whether it may be or not: whoever decides has asked `drawn_with` before."""
        self._level = self.level(now_s) - amount
        self._at_s = now_s

    def give_back(self, amount: int, now_s: float) -> None:
        """Correct what was drawn; a negative amount draws more."""
        self._level = min(float(self.burst), self.level(now_s) + amount)
        self._at_s = now_s

    def wait_s(self, amount: int, now_s: float) -> float:
        """Until it would be granted, if nothing else is drawn."""
        return max(0.0, (self.drawn_with(amount, now_s) - self.limit) / self.per_s)

    def promise(self, amount: int, horizon_s: float, now_s: float) -> float:
        """When to come back with it, in whole milliseconds. Beyond the horizon nobody does, so nothing is kept for him."""
        while self._promises and self._promises[0][0] <= now_s:
            self._promised -= heappop(self._promises)[1]
        wait_s = ceil(self.wait_s(amount + self._promised, now_s) * 1000 - 1e-6) / 1000
        if wait_s <= horizon_s and len(self._promises) < PROMISES_MAX:
            heappush(self._promises, (now_s + wait_s, amount))
            self._promised += amount
        return wait_s

    def full_s(self, now_s: float) -> float:
        """Until it is full, if nothing else is drawn."""
        return max(0.0, self.burst - self.level(now_s)) / self.per_s

    def change(self, per_s: float, burst: int | None, debt_max: int, now_s: float) -> None:
        """Another rate and size from now on. What has been drawn stays drawn."""
        drawn = self.burst - self.level(now_s)
        self.per_s, self.burst, self.debt_max = per_s, size(per_s, burst), debt_max
        self._level, self._at_s = self.burst - drawn, now_s


def size(per_s: float, burst: int | None) -> int:
    """The stated size, or `BURST_S` of the rate."""
    return burst if burst is not None else max(1, int(per_s * BURST_S))


class RetryBudget:
    """Retries of one client as a share of its first attempts, counted over the last half minute to minute."""

    __slots__ = ("_began_s", "_earlier", "_firsts", "_retries", "ratio")

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._began_s = 0.0
        self._firsts = self._retries = 0
        self._earlier = (0, 0)

    def first(self, now_s: float) -> None:
        """A first attempt came."""
        self._turn(now_s)
        self._firsts += 1

    def spend(self, now_s: float) -> tuple[int, float]:
        """A retry came: how many that makes, and how many may be. It is counted only if it may be."""
        self._turn(now_s)
        made = self._retries + self._earlier[1] + 1
        allowed = max(float(RETRIES_FREE), round(self.ratio * (self._firsts + self._earlier[0]), DIGITS))
        if made <= allowed:
            self._retries += 1
        return made, allowed

    def _turn(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s >= BUDGET_S:
            self._earlier = (self._firsts, self._retries) if passed_s < 2 * BUDGET_S else (0, 0)
            self._firsts = self._retries = 0
            self._began_s = now_s


class ReturnWindows:
    """The return slots a client holds, by the second they are due in: bounded by the horizon slots are given out to."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, int] = {}

    def give(self, due_s: float, now_s: float) -> None:
        """A refusal gave it a slot."""
        past = int(now_s // WINDOW_S) - 1
        for window in [one for one in self._due if one < past]:
            del self._due[window]
        window = int(due_s // WINDOW_S)
        self._due[window] = self._due.get(window, 0) + 1

    def keep(self, now_s: float) -> bool:
        """It is back. Whether that keeps a slot, which is used up by it."""
        for window in (int(now_s // WINDOW_S) - 1, int(now_s // WINDOW_S), int((now_s + EARLY_S) // WINDOW_S)):
            count = self._due.get(window, 0)
            if count > 1:
                self._due[window] = count - 1
            elif count:
                del self._due[window]
            if count:
                return True
        return False

"""One wheel of deadlines for all connections, so that ten thousand of them cost one outstanding timer.

A connection sits in exactly one slot. Moving its deadline later, which is what nearly every request does, only writes
`due_s`: the slot finds out when it comes round and files the connection again. Only an earlier deadline moves it. So a
slot fires at most `tick_s` late and never early. What the wheel holds is bounded: an entry a connection, a slot a tick up
to the longest limit. It turns once a tick while anything is filed, and not at all otherwise.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

NEVER_S = math.inf
UNFILED = -1

_FIRED_PER_TURN_MAX = 256
"""When thousands of peers stall together, closing them must not stall the loop."""


class Watched(Protocol):
    """What the wheel needs of a connection; both numbers are the wheel's to write, through `watch` and `forget`."""

    due_s: float
    wheel_slot: int

    def deadline_passed(self, now_s: float) -> None:
        """Called once for each deadline that passes; may watch again."""
        ...


class DeadlineWheel:
    """Deadlines with a resolution of `tick_s` on the clock given."""

    def __init__(self, clock_s: Callable[[], float], tick_s: float = 0.05) -> None:
        self._clock_s = clock_s
        self._tick_s = tick_s
        self._slots: dict[int, dict[Watched, None]] = {}
        self._turned_slot = 0
        """Up to here all has come round."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watched: Watched, due_s: float) -> None:
        """Sets the deadline; `NEVER_S` stands for none."""
        watched.due_s = due_s
        filed_slot = watched.wheel_slot
        if filed_slot != UNFILED:
            if filed_slot * self._tick_s <= due_s:
                return  # Later, or none: the slot finds out when it comes round.
            self._slots[filed_slot].pop(watched, None)
        elif due_s == NEVER_S:
            return
        if self._timer is None:
            self._turned_slot = int(self._clock_s() / self._tick_s)
            self._set_timer(self._tick_s)
        slot = max(int(due_s / self._tick_s), self._turned_slot) + 1
        watched.wheel_slot = slot
        self._slots.setdefault(slot, {})[watched] = None

    def forget(self, watched: Watched) -> None:
        """Takes out a connection that is gone."""
        watched.due_s = NEVER_S
        if watched.wheel_slot != UNFILED:
            self._slots[watched.wheel_slot].pop(watched, None)
            watched.wheel_slot = UNFILED

    def close(self) -> None:
        """Lets go of the timer; nothing fires afterwards."""
        self._slots.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        now_s = self._clock_s()
        now_slot = int(now_s / self._tick_s)
        fired = 0
        while self._turned_slot < now_slot and fired < _FIRED_PER_TURN_MAX:
            # Counted as turned first: a deadline already in the past is filed after the slot in hand.
            self._turned_slot += 1
            filed = self._slots.get(self._turned_slot, {})
            while filed and fired < _FIRED_PER_TURN_MAX:
                fired += 1
                self._come_round(filed.popitem()[0], now_s)
            if filed:
                self._turned_slot -= 1
            else:
                self._slots.pop(self._turned_slot, None)
        self._timer = None
        if self._slots:
            self._set_timer(self._tick_s if fired < _FIRED_PER_TURN_MAX else 0)

    def _come_round(self, watched: Watched, now_s: float) -> None:
        watched.wheel_slot = UNFILED
        due_s = watched.due_s
        if due_s <= now_s:
            watched.due_s = NEVER_S
            watched.deadline_passed(now_s)
        else:
            self.watch(watched, due_s)

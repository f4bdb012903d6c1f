"""One wheel of deadlines for all connections, so that ten thousand of them cost one outstanding timer.

A connection sits in exactly one slot. Moving its deadline later, which is what nearly every request does, only writes
`due_s`: the slot finds out when it comes round and files the connection again. Only an earlier deadline moves it. So a
slot fires at most `tick_s` late and never early. What the wheel holds is bounded: an entry a connection, a slot a tick up
to the longest limit.
"""

from __future__ import annotations

import asyncio
import heapq
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
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = UNFILED
        self._slot_min = 0

    def watch(self, watched: Watched, due_s: float) -> None:
        """Sets the deadline; `NEVER_S` stands for none."""
        watched.due_s = due_s
        filed_slot = watched.wheel_slot
        if filed_slot != UNFILED and filed_slot * self._tick_s <= due_s:
            return  # Later, or none: the slot finds out when it comes round.
        if due_s is NEVER_S:
            return
        if filed_slot != UNFILED:
            self._slots[filed_slot].pop(watched, None)
        self._file(watched, max(int(due_s / self._tick_s) + 1, self._slot_min))

    def forget(self, watched: Watched) -> None:
        """Takes out a connection that is gone."""
        watched.due_s = NEVER_S
        if watched.wheel_slot != UNFILED:
            self._slots[watched.wheel_slot].pop(watched, None)
            watched.wheel_slot = UNFILED

    def close(self) -> None:
        """Lets go of the timer; nothing fires afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._order.clear()

    def _file(self, watched: Watched, slot: int) -> None:
        watched.wheel_slot = slot
        filed = self._slots.get(slot)
        if filed is None:
            self._slots[slot] = {watched: None}
            heapq.heappush(self._order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._set_timer()
        else:
            filed[watched] = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = self._order[0]
        delay_s = max(0.0, self._timer_slot * self._tick_s - self._clock_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now_s = self._clock_s()
        fired = 0
        while self._order and self._order[0] * self._tick_s <= now_s and fired < _FIRED_PER_TURN_MAX:
            # A deadline already in the past is filed after the slot in hand, which may then be taken out by its place.
            self._slot_min = self._order[0] + 1
            filed = self._slots[self._order[0]]
            while filed and fired < _FIRED_PER_TURN_MAX:
                fired += 1
                self._come_round(filed.popitem()[0], now_s)
            if not filed:
                del self._slots[heapq.heappop(self._order)]
        if self._order and self._timer is None:
            self._set_timer()

    def _come_round(self, watched: Watched, now_s: float) -> None:
        watched.wheel_slot = UNFILED
        due_s = watched.due_s
        if due_s <= now_s:
            watched.due_s = NEVER_S
            watched.deadline_passed(now_s)
        elif due_s is not NEVER_S:
            self.watch(watched, due_s)

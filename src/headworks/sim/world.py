"""Virtual time: one heap of (time, order of asking, action), and nothing else that decides when something happens.

Everything in a simulation that takes time asks the world to be called later. Two actions due at the same instant run
in the order in which they were asked for, so a run depends on its seed alone and can be repeated byte for byte (G1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], object]


class World:
    """The clock and the list of what is still to happen. After each action `watch`, if set, may look at everything."""

    __slots__ = ("_due", "_order", "done", "now_s", "watch")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done = 0
        self.watch: Action | None = None
        self._due: list[tuple[float, int, Action]] = []
        self._order = 0

    def at(self, time_s: float, action: Action) -> None:
        """Call `action` at this time; a time already past means: next, in its turn."""
        self._order += 1
        heapq.heappush(self._due, (max(time_s, self.now_s), self._order, action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self, until_s: float, enough: Callable[[], bool] | None = None) -> None:
        """Let things happen up to and including `until_s`, or until `enough` says so."""
        due, watch = self._due, self.watch
        while due and due[0][0] <= until_s and (enough is None or not enough()):
            self.now_s, _, action = heapq.heappop(due)
            self.done += 1
            action()
            if watch is not None:
                watch()
        if enough is None or not enough():
            self.now_s = max(self.now_s, until_s)

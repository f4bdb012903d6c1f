"""How many requests should run on one engine? First version of the adaptive limit (B8).

A limit the operator gives, or the engine states, is used as it is. Otherwise it starts at `COLD_RUNNING`, since nothing
is known of a cold engine, and grows while it is really used and first tokens come in time: by one for each of them until
something was once too much, and by one for a whole limit's worth of them from then on. When a first token takes an
engine longer than `TARGET_RATIO` of the class's promise, or when requests wait inside the engine, it steps down. Unused,
it does not move: the application is the limit then.
"""

from __future__ import annotations

COLD_RUNNING = 8
TARGET_RATIO = 0.6
DOWN_RATIO = 0.9
DOWN_EVERY_S = 0.5
WAITING_SAMPLES = 3
"""So many samples in a row with requests waiting inside the engine mean that it is full, not merely between two steps."""


class RunningLimit:
    """The limit of one replica."""

    __slots__ = ("_down_s", "_fixed", "_untroubled", "_value", "_waiting_samples", "value")

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._value = float(COLD_RUNNING)
        self._untroubled = True
        """Nothing has been too much yet."""
        self._down_s = float("-inf")
        self._waiting_samples = 0
        self.value = COLD_RUNNING if fixed is None else fixed
        """Places in the running batch now."""

    def fix(self, fixed: int | None) -> None:
        """A reload states a limit, or takes it away."""
        self._fixed = fixed
        self._set(self._value)

    def first_token(self, took_s: float, promise_s: float | None, running: int, now_s: float) -> None:
        """A first token came after `took_s` in the engine, with `running` of our requests there.

        Without a promise nobody minds how long it took, and it counts like an answer in one piece.
        """
        if self._fixed is not None:
            return
        if promise_s is None:
            self.ended(running)
        elif took_s > TARGET_RATIO * promise_s:
            self._down(running, now_s)
        else:
            self._up(running)

    def ended(self, running: int) -> None:
        """An answer whose first token says nothing: all it tells is that an engine with nothing waiting inside keeps up."""
        if self._fixed is None and not self._waiting_samples:
            self._up(running)

    def sampled(self, running: int, waiting: int, now_s: float) -> None:
        """The engine's own gauges. What waits there waits for a place: `running` is all it takes."""
        if self._fixed is not None:
            return
        self._waiting_samples = self._waiting_samples + 1 if waiting > 1 else 0
        if self._waiting_samples >= WAITING_SAMPLES and running > 0:
            self._waiting_samples = 0
            self._untroubled = False
            self._set(min(self._value, running))
            self._down_s = now_s

    def _up(self, running: int) -> None:
        if running >= self.value:
            self._set(self._value + (1.0 if self._untroubled else 1.0 / self._value))

    def _down(self, running: int, now_s: float) -> None:
        self._untroubled = False
        if now_s - self._down_s < DOWN_EVERY_S:
            return
        self._down_s = now_s
        self._set(max(1.0, min(self._value, running) * DOWN_RATIO))

    def _set(self, value: float) -> None:
        self._value = value
        self.value = max(1, int(value)) if self._fixed is None else self._fixed

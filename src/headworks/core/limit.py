"""How many requests should run on one engine? First version of the adaptive limit (B8).

A limit the operator gives, or the engine states, is used as it is. Otherwise the limit follows the first token: when
it takes an engine longer than `TARGET_RATIO` of the class's promise from being sent to its first byte, or when requests
wait inside the engine, the limit steps down; while the limit is really used and first tokens come in time, it creeps up
by one request per limit's worth of first tokens. Unused, it does not move: the application is the limit then.
"""

from __future__ import annotations

TARGET_RATIO = 0.6
DOWN_RATIO = 0.9
DOWN_EVERY_S = 0.5
WAITING_SAMPLES = 3
"""So many samples in a row with requests waiting inside the engine mean that it is full, not merely between two steps."""


class RunningLimit:
    """The limit of one replica; None means no limit has been needed yet."""

    __slots__ = ("_down_s", "_fixed", "_value", "_waiting_samples", "value")

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._value: float | None = None
        self._down_s = float("-inf")
        self._waiting_samples = 0
        self.value = fixed
        """Places in the running batch now, or None."""

    def fix(self, fixed: int | None) -> None:
        """A reload states a limit, or takes it away."""
        self._fixed = fixed
        self._set(self._value)

    def _set(self, value: float | None) -> None:
        self._value = value
        if self._fixed is not None:
            self.value = self._fixed
        else:
            self.value = None if value is None else max(1, int(value))

    def first_token(self, took_s: float, promise_s: float | None, running: int, now_s: float) -> None:
        """A first token came after `took_s` in the engine, with `running` of our requests there."""
        if self._fixed is not None or promise_s is None:
            return
        if took_s > TARGET_RATIO * promise_s:
            self._down(running, now_s)
        elif self._value is not None and running >= int(self._value):
            self._set(self._value + 1.0 / self._value)

    def sampled(self, running: int, waiting: int, now_s: float) -> None:
        """The engine's own gauges. What waits there waits for a place: `running` is all it takes."""
        if self._fixed is not None:
            return
        self._waiting_samples = self._waiting_samples + 1 if waiting > 1 else 0
        if self._waiting_samples >= WAITING_SAMPLES and running > 0:
            self._waiting_samples = 0
            self._set(min(self._value or running, running))
            self._down_s = now_s

    def _down(self, running: int, now_s: float) -> None:
        if now_s - self._down_s < DOWN_EVERY_S:
            return
        self._down_s = now_s
        base = running if self._value is None else min(self._value, running)
        self._set(max(1.0, base * DOWN_RATIO))

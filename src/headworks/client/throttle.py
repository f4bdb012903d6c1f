"""Adaptive throttling at the client: who is refused most of the time stops asking before it costs the server anything.

Over the last two minutes, with *requests* all that were attempted (those rejected here included) and *accepts* those that the
server did not refuse, a new request is rejected here with probability

    max(0, (requests − K × accepts) / (requests + 1))

(Site Reliability Engineering, O'Reilly 2016, chapter 21, "Client-Side Throttling"). With K = 2 the server still sees about
twice what it accepts, so that it is noticed soon when it accepts more again. Only first attempts can be rejected here: a retry
comes at the time at which the server asked for it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

SLOTS = 24
"""Parts of the window; the oldest is forgotten as a whole."""


@dataclass(slots=True)
class _Slot:
    until_s: float
    requests: int = 0
    accepts: int = 0


class Throttle:
    """What one server made of the last attempts. May be used by several threads."""

    def __init__(self, accepts_ratio: float, window_s: float) -> None:
        self._accepts_ratio = accepts_ratio
        self._window_s = window_s
        self._slots: deque[_Slot] = deque()
        self._requests = 0
        self._accepts = 0
        self._lock = threading.Lock()

    def reject_ratio(self, now_s: float) -> float:
        """The share of new requests that are not worth sending now."""
        with self._lock:
            self._forget(now_s)
            return max(0.0, (self._requests - self._accepts_ratio * self._accepts) / (self._requests + 1))

    def note(self, accepted: bool, now_s: float) -> None:
        """One attempt is over, answered or rejected here."""
        with self._lock:
            self._forget(now_s)
            if not self._slots or self._slots[-1].until_s <= now_s:
                self._slots.append(_Slot(now_s + self._window_s / SLOTS))
            self._slots[-1].requests += 1
            self._slots[-1].accepts += accepted
            self._requests += 1
            self._accepts += accepted

    def _forget(self, now_s: float) -> None:
        while self._slots and self._slots[0].until_s <= now_s - self._window_s:
            gone = self._slots.popleft()
            self._requests -= gone.requests
            self._accepts -= gone.accepts

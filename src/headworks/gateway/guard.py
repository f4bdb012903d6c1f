"""The gateway guards itself (F11): what it refuses because it cannot keep up, whatever the engines could do.

Ten times a second it looks how late the event loop runs. Everything in this process is late by that much, streams that run as
well, so above one threshold new bulk work is refused, above a second one all new work, until it has caught up. What counts is
the middle one of five looks: a single pause, such as a machine that was suspended, leaves nothing to catch up with and refuses
nobody. Memory is looked at once a second; above its threshold all new work is refused. Descriptors and connections are the
port's (`http/listen.py`): nothing more is accepted.

What has been admitted is never touched: letting it end is what makes room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median_low

from headworks.config.settings import GuardSettings
from headworks.core.policy import ClassPolicy

log = logging.getLogger("headworks.gateway")

LOOK_S = 0.1
LOOKS = 5
MEMORY_EVERY = 10
"""Looks from one at the memory to the next."""
SPREAD_S = 8
"""Those who are refused come back in turn, within so many seconds: all at once they would be what made it late."""


@dataclass(slots=True)
class Overload:
    """What is too much here, as the answer says it."""

    subject: str
    numbers: tuple[float, float]
    """What it is, and its limit."""
    again_s: float = 1.0
    """When to come back."""


class Guard:
    """Construct, `start` in the loop that is guarded, ask `refuses` of each arrival, `close`."""

    def __init__(
        self,
        settings: GuardSettings,
        clock_s: Callable[[], float],
        rss_bytes: Callable[[], int],
        noted: Callable[[float], None],
    ) -> None:
        """`noted` is told how late each look came."""
        self._settings = settings
        self._clock_s = clock_s
        self._rss_bytes = rss_bytes
        self._noted = noted
        self._lags_s = deque([0.0] * LOOKS, maxlen=LOOKS)
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._memory: Overload | None = None
        self.shed = 0
        """Refused since the start."""
        self.overload: Overload | None = None
        """Why new work is refused now."""
        self._spares_promised = False
        """Only work without a promise of a first token is refused."""

    def start(self) -> None:
        self._look(self._clock_s())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def change(self, settings: GuardSettings) -> None:
        """From the next look on."""
        self._settings = settings

    def refuses(self, service_class: ClassPolicy) -> Overload | None:
        """Whether new work of this class is refused now, and for what. Bulk is what promises no first token."""
        overload = self.overload
        if overload is None or (self._spares_promised and service_class.ttft_slo_s is not None):
            return None
        self.shed += 1
        return replace(overload, again_s=1.0 + self.shed % SPREAD_S)

    def _look(self, due_s: float) -> None:
        now_s = self._clock_s()
        lag_s = max(0.0, now_s - due_s)
        self._noted(lag_s)
        self._lags_s.append(lag_s)
        if self._looks % MEMORY_EVERY == 0:
            self._memory = self._too_large()
        self._looks += 1
        self._weigh()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, now_s + LOOK_S)

    def _weigh(self) -> None:
        lag_s, settings, before = median_low(self._lags_s), self._settings, self.overload
        self._spares_promised = False
        if self._memory is not None:
            self.overload = self._memory
        elif lag_s > settings.loop_lag_shed_s:
            self.overload = _late(lag_s, settings.loop_lag_shed_s)
        elif lag_s > settings.loop_lag_shed_bulk_s:
            self.overload = _late(lag_s, settings.loop_lag_shed_bulk_s)
            self._spares_promised = True
        else:
            self.overload = None
        now = self.overload
        if now is not None and before is None:
            log.warning("new work is refused: %s is %s, the limit is %s", now.subject, *now.numbers)
        elif now is None and before is not None:
            log.warning("new work is taken again")

    def _too_large(self) -> Overload | None:
        most = self._settings.rss_shed_bytes
        try:
            used = self._rss_bytes()
        except OSError:  # no descriptor to look with: what was seen last holds, and the looks go on
            return self._memory
        if used <= most:
            return None
        return Overload("its memory in bytes", (used, most))


def _late(lag_s: float, limit_s: float) -> Overload:
    return Overload("the lag of its event loop in seconds", (round(lag_s, 3), limit_s))

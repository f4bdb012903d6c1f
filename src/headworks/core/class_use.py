"""What one class has in a pool that several share."""

from __future__ import annotations

from headworks.core.predict import DrainRate

PEAK_S = 3.0


class ClassUse:
    """What one class has in a pool that several share: what it took here, and how quickly it gets on while it waits."""

    __slots__ = (
        *("_peak_s", "asked_s", "denied_s", "drain", "peak_requests", "peak_tokens", "requests"),
        *("served_requests", "served_tokens", "tokens"),
    )

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self.peak_tokens = 0
        self.peak_requests = 0
        """The most it had, as far as it was looked at, in the last `PEAK_S`."""
        self._peak_s = 0.0
        self.asked_s = float("-inf")
        """When the last request of it arrived."""
        self.denied_s = float("-inf")
        """When one of it was last refused for want of room."""
        self.drain = DrainRate()
        self.served_tokens = 0
        self.served_requests = 0
        """Granted here since this gateway began."""

    def note_peak(self, now_s: float) -> None:
        """Look at what it has now."""
        if self.requests >= self.peak_requests or now_s > self._peak_s + PEAK_S:
            self.peak_requests, self.peak_tokens, self._peak_s = self.requests, self.tokens, now_s

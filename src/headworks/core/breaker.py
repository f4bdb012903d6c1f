"""Is an engine to be left alone for a while, because it fails? (B16)

A breaker of each replica, apart from admission: it counts what was sent there and how that ended, and looks at no load.
*Failed* is what could not be connected, was answered with a 5xx that is no recognised busy, stayed without a first byte for
as long as its class allows, or broke off. *Well* is every end in band, a refusal of the request itself included. What a client
gave up, what an engine refused as busy, and what was never sent say nothing and are not counted: a throttled engine is a
busy one, and the breaker stays closed.

    closed     it opens when, of at least `requests_min` ends within `window_s`, `error_ratio` or more failed
    open       nothing is sent there for `open_s`
    half_open  one request is sent as a probe. Its first byte, or its end, closes the breaker; its failure opens it again,
               for twice as long, up to `open_s_max`. A probe that says nothing, since its client left, makes way for another.

One that opens again within the time it was open for before has not been well in between: its time goes on doubling.
The window is counted in `SLICES` slices, so that it forgets between one and one and a tenth of `window_s` later.
"""

from __future__ import annotations

from collections import deque

from headworks.core.policy import INFINITE_S, BreakerPolicy

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
SLICES = 10


class Breaker:
    """Of one replica, by what this gateway sent there."""

    __slots__ = (
        "_earlier",
        "_failed",
        "_open_s",
        "_policy",
        "_probe",
        "_requests",
        "_slice_failed",
        "_slice_requests",
        "_slice_until_s",
        "is_closed",
        "transitions",
        "until_s",
    )

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self.is_closed = True
        self.until_s = -INFINITE_S
        """When it is open: until then. Afterwards one probe at a time may go."""
        self._open_s = policy.open_s
        """How long it stays open the next time; while it is open, how long that is."""
        self._probe = ""
        self.transitions: dict[str, int] = {OPEN: 0, HALF_OPEN: 0, CLOSED: 0}
        """How often it went over to each state."""
        self._begin()

    def _begin(self) -> None:
        """Nothing has been seen."""
        self._earlier: deque[tuple[float, int, int]] = deque()
        """Slices that are over: when, and how many ended and failed in each."""
        self._requests = self._failed = 0
        self._slice_requests = self._slice_failed = 0
        self._slice_until_s = -INFINITE_S

    def change_policy(self, policy: BreakerPolicy) -> None:
        """Other thresholds from here on; what was seen stays seen, and an open one keeps its time."""
        self._policy = policy
        if self.is_closed:
            self._open_s = policy.open_s

    def state(self, now_s: float) -> str:
        """For people and metrics."""
        if self.is_closed:
            return CLOSED
        return OPEN if now_s < self.until_s else HALF_OPEN

    def lets_pass(self, now_s: float) -> bool:
        """Whether something may be sent there now: always while it is closed, else one probe when its time is over."""
        return self.is_closed or (now_s >= self.until_s and not self._probe)

    def sent(self, execution: str, now_s: float) -> None:
        """It is not closed, and this is sent all the same: the probe, unless nobody is held up at all (observe mode)."""
        if self.lets_pass(now_s):
            self._probe = execution
            self.transitions[HALF_OPEN] += 1

    def silent(self, execution: str) -> None:
        """Nothing is to be learnt from this one: if it was the probe, another may go."""
        if execution == self._probe:
            self._probe = ""

    def began(self, execution: str, now_s: float) -> None:
        """Its first byte has come."""
        if execution == self._probe:
            self._close(now_s)

    def ended_well(self, execution: str, now_s: float) -> None:
        """It ended in band."""
        if now_s >= self._slice_until_s:
            self._turn(now_s)
        self._slice_requests += 1
        if not self.is_closed and execution == self._probe:
            self._close(now_s)

    def failed(self, execution: str, now_s: float) -> str:
        """It failed. Returns what there is to be said about it, if that opens the breaker."""
        if now_s >= self._slice_until_s:
            self._turn(now_s)
        self._slice_requests += 1
        self._slice_failed += 1
        if not self.is_closed:
            return self._open(2.0 * self._open_s, now_s, "the probe failed") if execution == self._probe else ""
        policy = self._policy
        requests, failed = self._requests + self._slice_requests, self._failed + self._slice_failed
        if requests < policy.requests_min or failed < policy.error_ratio * requests:
            return ""
        again = now_s - self.until_s < self._open_s and self.transitions[OPEN] > 0
        open_s = 2.0 * self._open_s if again else policy.open_s
        return self._open(open_s, now_s, f"{failed} of {requests} failed within {policy.window_s:g} s")

    def _open(self, open_s: float, now_s: float, why: str) -> str:
        self._open_s = min(open_s, self._policy.open_s_max)
        self.until_s = now_s + self._open_s
        self.is_closed = False
        self._probe = ""
        self.transitions[OPEN] += 1
        self._begin()
        return f"{why}: left alone for {self._open_s:g} s"

    def _close(self, now_s: float) -> None:
        self.is_closed = True
        self.until_s = now_s
        self._probe = ""
        self.transitions[CLOSED] += 1
        self._begin()

    def _turn(self, now_s: float) -> None:
        """Begin another slice, and forget those that are out of the window."""
        if self._slice_requests:
            self._earlier.append((self._slice_until_s, self._slice_requests, self._slice_failed))
            self._requests += self._slice_requests
            self._failed += self._slice_failed
            self._slice_requests = self._slice_failed = 0
        self._slice_until_s = now_s + self._policy.window_s / SLICES
        while self._earlier and self._earlier[0][0] <= now_s - self._policy.window_s:
            _, requests, failed = self._earlier.popleft()
            self._requests -= requests
            self._failed -= failed

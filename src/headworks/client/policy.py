"""When to ask again: rules without sockets, clocks and dice of their own, so that both transports obey the same ones.

A server that refuses says when to come back (`retry-after-ms`, `Retry-After`), or that it is no use (`x-should-retry: false`).
The hint is obeyed to the millisecond, since it is a place in a schedule: who comes earlier takes another's, who adds jitter of
his own leaves his empty. Without a hint the wait grows by half each time, and is spread by a fifth to either side so that
clients which were refused together do not come back together:

    wait = max(hint, first_wait_s × growth_ratio ^ retries × (1 ± jitter_ratio))

What is asked again is what the stock OpenAI SDKs ask again: 408, 409, 429, 5xx, and connections that could not be made. A
connection that broke later may have left work behind, so that is repeated only where it is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite

OVERLOAD_STATUSES = frozenset((429, 503))
RETRIED_STATUSES = frozenset((408, 409, *OVERLOAD_STATUSES))
SHOULD_RETRY = "x-should-retry"
GROWTHS_MAX = 32
"""A wait grows so often at most, and never beyond `hint_s_max`."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how soon, and when to stop asking at all."""

    retries_max: int = 3
    """After the first attempt, those of a client library above this one included."""
    first_wait_s: float = 0.5
    growth_ratio: float = 1.5
    jitter_ratio: float = 0.2
    hint_s_max: float = 60.0
    """Longer hints are not waited for: the caller gets an `OverloadError` at once and decides."""
    accepts_ratio: float = 2.0
    """The throttle's K: attempts for each accepted one before requests are rejected here."""
    throttle_window_s: float = 120.0
    """How long the throttle remembers an attempt."""


class OverloadError(Exception):
    """The server has no room for longer than is worth waiting, or has refused so much that it was not asked at all."""

    def __init__(self, message: str, hint_s: float | None, status: int | None = None, content: bytes = b"") -> None:
        super().__init__(message)
        self.hint_s = hint_s
        """Seconds until the server wants to be asked again, where it said so."""
        self.status = status
        """The refusal's status; None where the server was not asked."""
        self.content = content
        """The refusal's body: OpenAI's error object, and under `headworks` what decided."""

    @property
    def is_local(self) -> bool:
        """Rejected here, by what the server answered to others."""
        return self.status is None


class Course:
    """One request: told what came of each attempt, says how long to wait before the next, or that it was the last."""

    __slots__ = ("_draw", "_policy", "is_repeatable", "retries")

    def __init__(self, policy: RetryPolicy, draw: Callable[[], float], retries: int, is_repeatable: bool) -> None:
        self._policy = policy
        self._draw = draw
        self.retries = retries
        """Attempts after the first one so far."""
        self.is_repeatable = is_repeatable
        """Sending it twice does no harm, even if the first one arrived."""

    def wait_s_after_answer(self, status: int, headers: Mapping[str, str], wall_s: float) -> float | None:
        """Seconds until the next attempt; None: this answer stands. Raises `OverloadError` for a hint above the cap."""
        if not _is_retried(status, headers):
            return None
        hint_s = hint_s_of(headers, wall_s)
        if hint_s is not None and hint_s > self._policy.hint_s_max:
            reason = headers.get("x-overload-reason", f"status {status}")
            text = f"refused ({reason}): to come back in {hint_s:g} s, and {self._policy.hint_s_max:g} s are waited for at most"
            raise OverloadError(text, hint_s, status)
        if headers.get(SHOULD_RETRY) == "false":
            return None
        return self._wait_s(hint_s or 0.0)

    def wait_s_after_loss(self, was_sent: bool) -> float | None:
        """The same where no answer came."""
        return None if was_sent and not self.is_repeatable else self._wait_s(0.0)

    def _wait_s(self, hint_s: float) -> float | None:
        policy = self._policy
        if self.retries >= policy.retries_max:
            return None
        spread = 1.0 + policy.jitter_ratio * (2.0 * self._draw() - 1.0)
        growth = policy.growth_ratio ** min(self.retries, GROWTHS_MAX)
        own_s = min(policy.first_wait_s * growth * spread, policy.hint_s_max)
        self.retries += 1
        return max(hint_s, own_s)


def _is_retried(status: int, headers: Mapping[str, str]) -> bool:
    return status in RETRIED_STATUSES or status >= 500 or (status >= 300 and headers.get(SHOULD_RETRY) == "true")


def hint_s_of(headers: Mapping[str, str], wall_s: float) -> float | None:
    """When the server wants to be asked again; None where it says nothing that can be understood."""
    for name, per_s in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            hint_s = float(headers.get(name, "")) / per_s
        except ValueError:
            continue
        if isfinite(hint_s) and hint_s >= 0.0:
            return hint_s
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError):
        return None

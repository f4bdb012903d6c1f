"""Tokens are counted by events: how many an event is worth, learnt per replica from answers that said both."""

from __future__ import annotations

from math import ceil

RATE_EVENTS_MAX = 10_000
"""How far back the tokens per event of a replica are remembered."""


class EventRate:
    """Tokens per event of one replica. One object for all relays of the replica."""

    __slots__ = ("_events", "_tokens")

    def __init__(self) -> None:
        self._events = 1.0
        self._tokens = 1.0

    def tokens(self, events: int) -> int:
        """What so many events are worth."""
        return round(events * self._tokens / self._events)

    def events(self, tokens: int) -> int:
        """The events after which so many tokens have been counted."""
        return ceil(tokens * self._events / self._tokens)

    def learn(self, events: int, tokens: int) -> None:
        """An answer of so many events had so many tokens. Old answers count half as much each time the memory is full."""
        self._events += events
        self._tokens += tokens
        if self._events > RATE_EVENTS_MAX:
            self._events /= 2
            self._tokens /= 2

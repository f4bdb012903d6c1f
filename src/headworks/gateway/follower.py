"""What the relay of an execution tells whoever follows it: how it goes and, once, how it ended."""

from __future__ import annotations

from typing import Protocol

from headworks.core.types import Usage


class Follower(Protocol):
    """Who is told what became of an execution."""

    def first_byte(self) -> None:
        """The engine has begun: its first event, or the first bytes of a whole answer."""

    def progressed(self, output_tokens: int) -> None:
        """So many tokens, all samples together, counted from events."""

    def slow(self, paused: bool) -> None:
        """Reading from the engine was paused for a slow client, or goes on."""

    def stopped(self, usage: Usage, failed: bool, at_once: bool = False) -> None:
        """It ended in band (E1). `failed`: with an error answer, so nothing of it runs. `at_once`: with its first byte, of
        which nothing was told before."""

    def lost(self, cause: str, unheard: bool) -> None:
        """It may still run. `unheard`: the audience has been told nothing, and is not told of this either."""

    def not_sent(self, reason: str) -> None:
        """Nothing was written, and the audience has not been answered."""

    def busy(self, retry_after_s: float) -> None:
        """The engine refused it for want of room, and the audience has not been answered. It said when to come back, or 0."""

    def closed(self) -> None:
        """After an abort: the engine's server closed its side."""

    def over(self) -> None:
        """Nothing more will come from this execution's connection. The last call, once."""

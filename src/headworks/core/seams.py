"""The places where another author's code may stand. Each protocol opens with the question it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headworks.core.commands import Answer, Command


class LedgerStore(Protocol):
    """Do this atomically. One mixed list is run in order; either all of it is known to have run, or the store is lost."""

    guarantee: str
    """One sentence, printed at start: what survives what."""

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        """Run the commands; call `answered` once with an answer each, in order, at once or later, never when lost.

        Must not be called from inside `answered`.
        """
        ...

    def now_ms(self) -> int:
        """The store's clock, for reading only."""
        ...

    def close(self) -> None:
        """Let go of files and connections. What was answered stays answered."""
        ...

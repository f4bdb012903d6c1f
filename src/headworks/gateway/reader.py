"""Who hears how a client reads its answer: what the port tells, and an audience listens to."""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """One answer's, for its client."""

    def fall_behind(self) -> None:
        """What was written waits: no more, please."""

    def catch_up(self) -> None:
        """It has read what waited."""

    def leave(self) -> None:
        """It is gone, and this is the last that is said."""

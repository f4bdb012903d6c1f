"""Answers that may be asked for again (A6): those on their way, so that a repeated key joins them; whole ones, for replay.

They are kept in this process only, never in the ledger's store, and in bounded memory: an answer up to `bytes_max`, all
together up to `total_bytes_max`, a whole one for `remember_s`. When memory is short the oldest whole one goes first; an
answer on its way that finds no room goes on, and only cannot be joined any more. Whoever asks for what is not kept gets 409.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from headworks.gateway.audience import Audience

ENTRY_BYTES = 1_024
"""What an answer costs beside its bytes: it counts as so much, so that many short ones are bounded as well."""


class Answers:
    """Audiences by execution. Each is the memory of all (`audience.Memory`)."""

    def __init__(
        self,
        *,
        bytes_max: int,
        total_bytes_max: int,
        remember_s: float,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._remember_s = remember_s
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._running: dict[str, Audience] = {}
        self._whole: OrderedDict[str, tuple[float, Audience]] = OrderedDict()
        """With the time each was whole at, oldest first."""
        self.total_bytes = 0

    def open(self, execution: str) -> Audience:
        """An execution is about to be sent whose answer others may share."""
        audience = Audience(self._wall_s, self._bytes_max, self)
        self.send_on(execution, audience)
        return audience

    def send_on(self, execution: str, audience: Audience) -> None:
        """Another execution is to give this audience its answer."""
        self._expire()
        self._running[execution] = audience
        self.total_bytes += ENTRY_BYTES
        self._make_room()

    def find(self, execution: str) -> Audience | None:
        """Where the answer of this execution is to be had, if it still is."""
        self._expire()
        audience = self._running.get(execution)
        if audience is None and execution in self._whole:
            audience = self._whole[execution][1]
        return audience

    def over(self, execution: str, completed: bool) -> None:
        """Nothing more comes from its connection. What is not a whole answer to a completed request is not kept."""
        audience = self._running.pop(execution, None)
        if audience is None:
            return
        if completed and audience.whole:
            self._whole[execution] = self._clock_s(), audience
            return
        self.total_bytes -= ENTRY_BYTES
        if audience.started:  # else another attempt may write to it
            audience.let_go()

    # memory

    def take(self, size_bytes: int) -> bool:
        """For an audience: it holds so much more from now on, unless there is no room for it."""
        self.total_bytes += size_bytes
        self._make_room()
        if self.total_bytes <= self._total_bytes_max:
            return True
        self.total_bytes -= size_bytes
        return False

    def give(self, size_bytes: int) -> None:
        """For an audience: it has let go of so much."""
        self.total_bytes -= size_bytes

    def _make_room(self) -> None:
        while self.total_bytes > self._total_bytes_max and self._whole:
            self._forget_oldest()

    def _expire(self) -> None:
        oldest_s = self._clock_s() - self._remember_s
        while self._whole and next(iter(self._whole.values()))[0] < oldest_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, audience) = self._whole.popitem(last=False)
        self.total_bytes -= ENTRY_BYTES
        audience.let_go()

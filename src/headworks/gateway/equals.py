"""Answers to equal requests, for classes that may be answered from memory under pressure (E5, `on_pressure: cached`).

Equal is exact: the same tenant, route, and value of every parameter that matters, which is what an `Idempotency-Key` is held
to as well (`dialects/base.Parsed.fingerprint`). Only a whole answer to a request that ran as it came is kept, never one that
was clamped or came from another model. Memory is bounded like that of replays, and by the same settings; the one that was not
asked for the longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from headworks.core.policy import ClassPolicy
from headworks.gateway.audience import Audience
from headworks.gateway.dialects.base import Parsed

Name = tuple[str, str]
"""Tenant and fingerprint."""
ENTRY_BYTES = 1_024
"""What one costs beside its bytes."""


class Equals:
    """Whole answers by name. It is the memory of their audiences (`audience.Memory`)."""

    def __init__(self, bytes_max: int, total_bytes_max: int, keep_s: float, clock_s: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._keep_s = keep_s
        self._clock_s = clock_s
        self._whole: OrderedDict[Name, tuple[float, Audience]] = OrderedDict()
        """With the time each was whole at; the one asked for last stands last."""
        self.total_bytes = 0

    def name(self, tenant: str, parsed: Parsed, service_class: ClassPolicy) -> Name | None:
        """What equal requests are called; None: its class is not answered from memory, so nobody needs to know."""
        if not self._bytes_max or all(step.action != "cached" for step in service_class.on_pressure):
            return None
        return tenant, parsed.fingerprint()

    def open(self, wall_s: Callable[[], float]) -> Audience:
        """One whose answer is kept here, as far as there is room."""
        return Audience(wall_s, self._bytes_max, self)

    def find(self, name: Name | None) -> Audience | None:
        """The whole answer to an equal request, if it is kept."""
        found = self._whole.get(name) if name is not None else None
        if name is None or found is None:
            return None
        if found[0] < self._clock_s() - self._keep_s:
            self._forget(name)
            return None
        self._whole.move_to_end(name)
        return found[1]

    def over(self, name: Name, audience: Audience, completed: bool) -> None:
        """Nothing more comes of it: it is kept if it is whole."""
        if not completed or not audience.whole or self.total_bytes + ENTRY_BYTES > self._total_bytes_max:
            audience.let_go()
            return
        if name in self._whole:
            self._forget(name)
        self._whole[name] = self._clock_s(), audience
        self.total_bytes += ENTRY_BYTES

    def _forget(self, name: Name) -> None:
        _, audience = self._whole.pop(name)
        self.total_bytes -= ENTRY_BYTES
        audience.let_go()

    # memory

    def take(self, size_bytes: int) -> bool:
        """It holds so much more from now on, unless there is no room for it."""
        while self._whole and self.total_bytes + size_bytes > self._total_bytes_max:
            self._forget(next(iter(self._whole)))
        if self.total_bytes + size_bytes > self._total_bytes_max:
            return False
        self.total_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """It has let go of so much."""
        self.total_bytes -= size_bytes

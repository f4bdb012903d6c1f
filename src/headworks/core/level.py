"""One level of turns: a virtual time, a tag for every flow, and those that wait, sorted by their tags.

The ledger has one for the classes of a pool and one for the tenants of each class (`core/fair.py` says what the tags mean and
what they guarantee); a gateway has the same of what waits at itself (`core/queue.py`). A flow that waits and is not to be
looked at for a while *rests*: it keeps its tag and stands in no order, so that it costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator

FLOWS_MAX = 4096
"""Per level. Above, flows with F ≤ V are forgotten, which changes nothing: they would start at V anyway."""


class Level:
    """The classes of a pool, or the tenants of a class."""

    __slots__ = ("_names", "_resting", "_tags", "_waiting", "finish", "virtual")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.finish: dict[str, float] = {}
        self._waiting: dict[str, float] = {}
        """Who waits, and the tag it stands at among the turns."""
        self._tags: list[float] = []
        self._names: list[str] = []
        """Side by side, the lowest tag first, and by name where tags are the same: numbers alone are quick to compare."""
        self._resting: set[str] = set()
        """Of those that wait."""

    def start(self, name: str) -> float:
        """The tag its next request starts at: its own while it waits, not before V if it is idle."""
        finish = self.finish.get(name, 0.0)
        return finish if finish > self.virtual or name in self._waiting else self.virtual

    def wait(self, name: str, *, again: bool = False) -> None:
        """It begins to wait: from now on it keeps its tag, however far V goes on. `again`: it did before a restart."""
        if name not in self._waiting:
            tag = self._waiting[name] = self.finish[name] if again else self._lift(name)
            self._insert(tag, name)
        elif name in self._resting:
            self._resting.discard(name)
            self._insert(self._waiting[name], name)

    def rest(self, name: str) -> None:
        """It waits, and nobody need look at it until it says again that it does."""
        if name in self._waiting and name not in self._resting:
            self._resting.add(name)
            self._remove(self._waiting[name], name)

    def leave(self, name: str) -> None:
        """Nothing of it waits any more."""
        tag = self._waiting.pop(name, None)
        if tag is not None and name in self._resting:
            self._resting.discard(name)
        elif tag is not None:
            self._remove(tag, name)

    @property
    def waits(self) -> bool:
        """Something waits here, resting or not."""
        return bool(self._waiting)

    def serve(self, name: str, cost_per_weight: float) -> None:
        """A grant: time moves to its start tag."""
        start = self.finish.get(name)
        if start is None or (start < self.virtual and name not in self._waiting):
            start = self._lift(name)
        if start > self.virtual:
            self.virtual = start
        if self._waiting:
            self._move(name, start + cost_per_weight)
        else:
            self.finish[name] = start + cost_per_weight

    def correct(self, name: str, difference_per_weight: float) -> None:
        """The truth about what was charged: move the tag, but not back below V."""
        finish = self.finish.get(name, self.virtual)
        corrected = finish + difference_per_weight
        if corrected < self.virtual:
            corrected = max(corrected, min(finish, self.virtual))
        if self._waiting:
            self._move(name, corrected)
        else:
            self.finish[name] = corrected

    def caught_up(self, name: str) -> bool:
        """It has had all that was its turn until now."""
        return self.finish.get(name, 0.0) >= self.virtual

    def in_turn(self) -> Iterator[tuple[float, str]]:
        """Who waits and does not rest, lowest tag first. Valid until somebody begins to wait, or stops."""
        for at, name in enumerate(self._names):
            yield self._tags[at], name

    def _lift(self, name: str) -> float:
        """Whatever was not used while it was idle is gone."""
        finish = self.finish.get(name)
        if finish is not None and finish >= self.virtual:
            return finish
        if finish is None and len(self.finish) >= FLOWS_MAX:
            self.finish = {flow: tag for flow, tag in self.finish.items() if tag > self.virtual or flow in self._waiting}
        self.finish[name] = self.virtual
        return self.virtual

    def _move(self, name: str, tag: float) -> None:
        self.finish[name] = tag
        stood = self._waiting.get(name)
        if stood is not None:
            self._waiting[name] = tag
            if name not in self._resting:
                self._remove(stood, name)
                self._insert(tag, name)

    def _insert(self, tag: float, name: str) -> None:
        at = self._place(tag, name)
        self._tags.insert(at, tag)
        self._names.insert(at, name)

    def _remove(self, tag: float, name: str) -> None:
        at = self._place(tag, name)
        del self._tags[at]
        del self._names[at]

    def _place(self, tag: float, name: str) -> int:
        """Where it stands, or would. `bisect` compares objects; compiled, this compares numbers and texts."""
        tags, names = self._tags, self._names
        low, high = 0, len(tags)
        while low < high:
            middle = (low + high) >> 1
            stood = tags[middle]
            if stood < tag or (stood == tag and names[middle] < name):
                low = middle + 1
            else:
                high = middle
        return low

"""The clock proof (E3a): when has an engine certainly stopped working for a closed connection?

After the owner half-closed and the engine's server closed its side, the abort stands in the engine's own queue. A
scrape begun after that shows the iteration count c. A later scrape of the same incarnation that shows c + 4 or more, on
every data-parallel rank, or a rank with nothing in it, proves that the abort has been carried out: real engines took at
most two iterations. It needs no exclusivity and nothing of other gateways. A frozen counter proves nothing.

Emptiness is weaker than it looks: gauges are those of the last finished step. An engine that hangs, or is still busy
with the first step of this very execution, shows the emptiness of before. So an empty rank counts only if its gauges
are younger than the execution: the engine had shown a byte of it, or the clock moved by two between the samples. One is
not enough: the step that ended may have begun before the execution was taken in.
"""

from __future__ import annotations

from headworks.core.types import ReplicaSample

ITERATIONS = 4
TAKEN_IN_ITERATIONS = 2
"""What arrived before the first sample stands in the gauges of the step after next, or has left."""


class ClockProof:
    """One closed connection on its way to being proved stopped."""

    __slots__ = ("_began", "_closed_s", "_first")

    def __init__(self, closed_s: float, began: bool = True) -> None:
        self._closed_s = closed_s
        self._began = began
        """The engine had shown a byte of it."""
        self._first: ReplicaSample | None = None

    def seen(self, sample: ReplicaSample) -> bool:
        """Take one sample in; true once it proves the stop."""
        if sample.begun_s < self._closed_s or sample.iterations is None:
            return False
        first = self._first
        if first is None or first.incarnation != sample.incarnation or first.iterations is None:
            self._first = sample
            return False
        loads = sample.rank_loads or _whole_load(sample)
        if len(first.iterations) != len(sample.iterations) or len(loads) != len(sample.iterations):
            self._first = sample
            return False
        return all(
            now - then >= ITERATIONS or (load == 0 and (self._began or now - then >= TAKEN_IN_ITERATIONS))
            for then, now, load in zip(first.iterations, sample.iterations, loads, strict=True)
        )

    def missing(self, sample: ReplicaSample) -> int:
        """Iterations until this sample's clock can prove it; all of them before a first sample counts."""
        first = self._first
        if first is None or not first.iterations or not sample.iterations or len(first.iterations) != len(sample.iterations):
            return ITERATIONS
        done = min(now - then for then, now in zip(first.iterations, sample.iterations, strict=True))
        return max(1, ITERATIONS - done)


def _whole_load(sample: ReplicaSample) -> tuple[int, ...]:
    if sample.running is None or sample.waiting is None:
        return (-1,) * len(sample.iterations or ())
    return (sample.running + sample.waiting,) * len(sample.iterations or ())


def iteration_s(before: ReplicaSample | None, after: ReplicaSample) -> float | None:
    """Seconds an iteration between two samples of the same engine, by its slowest rank.

    A look that takes long is made somewhere between its begin and its end: by their middle its error is half of it at most, and
    as often one way as the other.
    """
    if before is None or before.incarnation != after.incarnation or not before.iterations or not after.iterations:
        return None
    made = min(now - then for then, now in zip(before.iterations, after.iterations, strict=False))
    apart_s = (after.begun_s + after.ended_s - before.begun_s - before.ended_s) / 2
    return apart_s / made if made > 0 else None

"""What the ledger knows of one replica, and the counting proof (E3b): when is an execution nobody watches certainly gone?

One boot, the *reader*, measures the engine's load N in a scrape begun after it knew ledger sequence Q, and hands it in as
sequence S. *Known inside* are the executions that were RUNNING at Q and still are, when every owner among them has since
vouched for them (`Heartbeat.seen_sequence` ≥ S): they were in the engine while the scrape was made. If the engine held no
more than those, nothing else was in it: whatever was closing or orphaned at Q has left. An execution never seen may also
still be on its way to the engine, so it must have been closing for a whole lease when the sample came.

What is owned but not yet inside is never counted: with such work counted, an orphan that still runs hides behind a request
that has not reached the engine, and live work is freed.

N below known inside is impossible; then some guard was too short and the proof is off, loudly. Load above everything that
is charged, three samples running, is foreign: the proof is off until three samples show none.

Incarnations are numbered in the order in which they were first seen. One that returns means several engines behind one
address: then only in-band evidence counts there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headworks.core.book_counters import Charges
from headworks.core.book_parts import Boot, Entry, sequences
from headworks.core.book_table import CANCELLING, ORPHANED, RUNNING
from headworks.core.types import Owner

READER_MS = 3000
FOREIGN_SAMPLES = 3
UNDECIDED_SAMPLES = 20
DOUBT_MS = 5000
"""Work closing for so long makes undecided samples worth a pause."""
YIELD_MS = 2000
YIELD_EVERY_MS = 30_000
SAMPLES_MAX = 64
"""Samples that wait for their owners' word; with more, the oldest goes."""
ENDED_MAX = 1024
"""Ended executions remembered to see whether a load was charged when it was measured."""
INCARNATIONS_MAX = 64
"""Incarnation values remembered to see one return."""


class Sample:
    """One measured load of the engine's present life that waits for the owners to vouch."""

    __slots__ = ("after_sequence", "at_ms", "load", "sequence")

    def __init__(self, load: int, after_sequence: int, sequence: int, at_ms: int) -> None:
        self.load = load
        self.after_sequence = after_sequence
        self.sequence = sequence
        self.at_ms = at_ms


class Replica:
    """One engine, as the ledger sees it."""

    __slots__ = (
        "ended",
        "entries",
        "foreign",
        "foreign_load",
        "foreign_samples",
        "impossible",
        "incarnation",
        "incarnations",
        "name",
        "reader",
        "reader_until_ms",
        "samples",
        "several",
        "undecided",
        "yield_from_ms",
        "yield_until_ms",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, Entry] = {}
        """Charged executions on it."""
        self.ended: deque[tuple[int, Charges]] = deque(maxlen=ENDED_MAX)
        """(ledger sequence, charges) of what ended lately."""
        self.reader: Owner | None = None
        self.reader_until_ms = 0
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.undecided = 0
        self.yield_until_ms = 0
        self.yield_from_ms = 0
        """The next pause may not begin earlier."""
        self.foreign = False
        self.foreign_load = 0
        """What the last sample showed above everything that was charged."""
        self.foreign_samples = 0
        self.impossible = False
        self.several = False
        self.incarnation = 0
        self.incarnations: deque[str] = deque(maxlen=INCARNATIONS_MAX)
        """Values, the current one last."""

    def take_reader(self, owner: Owner, now_ms: int) -> bool:
        """Become or stay the reader."""
        if self.reader is not None and self.reader != owner and now_ms < self.reader_until_ms:
            return False
        self.reader = owner
        self.reader_until_ms = now_ms + READER_MS
        return True

    def reads(self, owner: Owner, now_ms: int) -> bool:
        """Whether this boot is the reader now."""
        return self.reader == owner and now_ms < self.reader_until_ms

    def show(self, incarnation: str, known: int) -> str:
        """A sample showed this value: `same`, `newer`, `stale` (it may be older than what is known) or `several`."""
        if self.incarnations and self.incarnations[-1] == incarnation:
            return "same"
        if known != self.incarnation:
            return "stale"
        if incarnation in self.incarnations:
            self.several = True
            return "several"
        self.incarnations.append(incarnation)
        self.incarnation += 1
        self.impossible = False
        self.undecided = 0
        self.samples.clear()  # they speak of the life before
        return "newer"

    def reset(self) -> None:
        """An operator says the engine is gone: whatever comes at this address starts with a clean record."""
        self.several = self.impossible = self.foreign = False
        self.foreign_load = self.foreign_samples = self.undecided = self.yield_until_ms = 0
        self.samples.clear()

    def note_foreign(self, sample: Sample) -> bool:
        """Compare a load with everything that was charged from Q to S. True when foreign load has just been found."""
        charged = sum(sequences(entry.charges) for entry in self.entries.values())
        charged += sum(sequences(charges) for sequence, charges in self.ended if sequence > sample.after_sequence)
        self.foreign_load = max(0, sample.load - charged)
        if (sample.load > charged) == self.foreign:
            self.foreign_samples = 0
            return False
        self.foreign_samples += 1
        if self.foreign_samples < FOREIGN_SAMPLES:
            return False
        self.foreign_samples = 0
        self.foreign = not self.foreign
        return self.foreign

    def known_inside(self, sample: Sample, boots: Mapping[Owner, Boot]) -> int | None:
        """How many executions were certainly inside while the scrape was made; None while an owner has yet to vouch."""
        inside = 0
        for entry in self.entries.values():
            if entry.state != RUNNING or entry.running_sequence > sample.after_sequence:
                continue
            boot = boots[entry.owner]
            if boot.seen_sequence < sample.sequence:
                return None
            if entry.execution not in boot.unvouched:
                inside += 1
        return inside

    def proved_stopped(self, sample: Sample, lease_ms: int) -> list[Entry]:
        """What has left the engine, once the load was no more than what is known inside."""
        return [
            entry
            for entry in self.entries.values()
            if entry.closing_sequence
            and entry.closing_sequence <= sample.after_sequence
            and (entry.seen or sample.at_ms >= entry.closing_ms + lease_ms)
        ]

    def doubt(self, now_ms: int) -> None:
        """A sample decided nothing. After many, with work closing for long, new work pauses so that one can decide."""
        self.undecided += 1
        if self.undecided < UNDECIDED_SAMPLES or now_ms < self.yield_from_ms:
            return
        if any(
            entry.state in (CANCELLING, ORPHANED) and now_ms >= entry.closing_ms + DOUBT_MS for entry in self.entries.values()
        ):
            self.yield_until_ms = now_ms + YIELD_MS
            self.yield_from_ms = now_ms + YIELD_EVERY_MS

    def decided(self) -> None:
        """A sample decided."""
        self.undecided = 0
        self.yield_until_ms = 0

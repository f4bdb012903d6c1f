"""What is held against every (scope, unit), and the limits it is compared with (A3).

Nothing here knows what a scope means. Charges are taken all or none; what an execution gives back is what its own record
says, so the sum of the records is the counter at every moment. A limit that is lowered under what is held leaves an
*excess*: recorded, and draining as work ends (design section 5, rule 11).

A *floor* keeps part of a limit for one scope (B10, B11): whoever is charged to `within` without being charged to the floor's
scope finds the limit smaller by the part of the floor that is not in use. That part may be *lent*: who is charged to the
floor's `lent` scope as well finds the whole limit, and for all others what is lent does not count, so it costs nobody but the
floor's owner anything. How much is kept is counted along, so a check costs the same however many floors there are.

Charges that begin with one of an *observed* scope are taken whatever the limits (F3): it runs in any case, and what it holds is
nobody else's any more. What is above a limit then is excess, like any other.

What is held only while a prompt is read (`types.READ_UNITS`) fits however large it is where nothing else is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headworks.core.commands import Floor, Shortfall
from headworks.core.types import READ_UNITS

Charges = Sequence[tuple[str, str, int]]
"""Each in the shape of `Charge`: (scope, unit, amount)."""

UNLIMITED = 1 << 62
STANDING = -1
"""As a limit that is told: whatever is in force there."""
OBSERVED = "observed:"
"""How the scope begins that stands first among charges which no limit holds up."""
COUNTERS_SWEPT_AT = 4096
"""Above so many, counters with nothing held and no limit are dropped before another is added."""


class Counter:
    """One (scope, unit)."""

    # fmt: off
    __slots__ = (
        "committed", "excess", "floor", "follower", "guaranteed", "held", "is_pinned", "is_read", "kept", "lent", "limit",
        "scope", "unit", "unused", "within",
    )
    # fmt: on

    def __init__(self, scope: str, unit: str) -> None:
        self.scope = scope
        self.unit = unit
        self.is_read = unit in READ_UNITS
        """Held until a prompt has been read, and always granted to one that is alone."""
        self.held = 0
        self.committed = 0
        """The part of it that no execution holds: used up, and never given back while the limit stands."""
        self.limit = UNLIMITED
        self.excess = 0
        """What was held when it was last known to be above its limit for a good reason; 0 where it never was."""
        self.is_pinned = False
        """A floor speaks of it."""
        self.floor = self.unused = 0
        """What of the limit of `within` is kept for this one, and the part of it that it does not hold."""
        self.within: Counter | None = None
        self.guaranteed = self.kept = 0
        """The same of all the floors within this one."""
        self.lent: Counter | None = None
        """Who may have what is kept until its owner wants it."""
        self.follower = self
        """The counter that was charged right after this one the last time. Requests alike charge the same scopes in the
        same order, and comparing two names costs a fraction of looking them up."""


class Counters:
    """All of them."""

    __slots__ = ("_counters", "_floors", "_leader", "_sweep_at", "observing", "reading", "underflows")

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}
        self._floors: tuple[Floor, ...] = ()
        self._sweep_at = COUNTERS_SWEPT_AT
        self._leader = Counter("", "")
        """No counter, but what the first one of every list follows on."""
        self.reading = False
        """Something was ever held for the reading of a prompt: where that is not counted, nobody looks for it."""
        self.observing = False
        """Something was ever charged that no limit holds up: elsewhere nobody looks for it."""
        self.underflows = 0
        """Times a counter fell below zero. It is never clamped; `Book.check` says which (K15)."""

    def take(self, charges: Charges) -> tuple[Sequence[Counter], Sequence[Shortfall]]:
        """Charge all of them, or none: then the second list says what was missing."""
        taken: list[Counter] = []
        fits = True
        before = self._leader
        # Charged first and taken back where it does not fit, so that two charges of one scope are checked together.
        for scope, unit, amount in charges:
            counter = before.follower
            if counter.scope != scope or counter.unit != unit:
                counter = before.follower = self._counters.get((scope, unit)) or self._add(scope, unit)
            held = counter.held = counter.held + amount
            if held > counter.limit:
                fits = False
            taken.append(counter)
            before = counter
        if self._floors:
            _count_unused(taken)
        elif fits:
            return taken, ()
        shortfalls = self._shortfalls(charges, taken)
        if not shortfalls:
            return taken, ()
        if self.observing and charges[0][0].startswith(OBSERVED):
            _note_excess(taken)
            return taken, ()
        self.give(charges, taken)
        return taken, shortfalls

    def force(self, charges: Charges, *, restoring: bool = False) -> list[Counter]:
        """Charge what is known to run already, whatever the limits; what is above them is recorded excess, or will be."""
        taken: list[Counter] = []
        for scope, unit, amount in charges:
            counter = self._counters.get((scope, unit)) or self._add(scope, unit)
            counter.held += amount
            if not restoring:
                counter.excess = max(counter.excess, counter.held)
            taken.append(counter)
        if self._floors:
            _count_unused(taken)
        return taken

    def give(self, charges: Charges, taken: Sequence[Counter]) -> None:
        """Give back exactly what was taken."""
        at = 0
        for counter in taken:  # six for every request: counting along costs half of what `zip` or `enumerate` does
            held = counter.held = counter.held - charges[at][2]
            at += 1  # noqa: SIM113
            if held < 0:
                self.underflows += 1
        if self._floors:
            _count_unused(taken)

    def inside(self, charges: Charges) -> bool:
        """It would take nothing but what is kept for it: of every floor it stands on, the part that is not in use.

        Or nothing holds it up at all, so it takes nobody's turn either."""
        if charges and charges[0][0].startswith(OBSERVED):  # also the first of all, of whose scope nothing is counted yet
            return True
        if not self._floors:
            return False
        found = False
        for counter, (_, _, amount) in zip(self.find(charges), charges, strict=True):
            if counter.floor:
                if counter.held + amount > counter.floor:
                    return False
                found = True
        return found

    def owes(self, shortfalls: Sequence[Shortfall]) -> bool:
        """A limit that parts are kept of is among what was missing."""
        found = (self._counters.get((short.scope, short.unit)) for short in shortfalls)
        return any(counter is not None and counter.guaranteed > 0 for counter in found)

    def move(self, scopes: Iterable[str], unit: str, amount: int) -> None:
        """Hold so much more, or less, in each of these, whatever the limits: who holds it has been asked about them."""
        found = self.find([(scope, unit, amount) for scope in scopes])
        for counter in found:
            counter.held += amount
            if counter.held > counter.limit:
                counter.excess = max(counter.excess, counter.held)
            elif counter.held < 0:
                self.underflows += 1
        if self._floors:
            _count_unused(found)

    def lacking(self, charges: Charges) -> list[tuple[str, str]]:
        """The (scope, unit) that could not take these charges now. Nothing is charged, and nothing of it left behind."""
        if charges and charges[0][0].startswith(OBSERVED):
            return []
        taken, shortfalls = self.take(charges)
        if not shortfalls:
            self.give(charges, taken)
        return [(shortfall.scope, shortfall.unit) for shortfall in shortfalls]

    def never_fits(self, charges: Charges) -> list[Shortfall]:
        """Charges that no amount of waiting makes room for: more than a whole limit, less what others are guaranteed."""
        never = []
        counters = self.find(charges)
        for (scope, unit, amount), counter in zip(charges, counters, strict=True):
            limit = counter.limit
            if counter.guaranteed and counter.lent not in counters:
                limit -= counter.guaranteed - sum(one.floor for one in dict.fromkeys(counters) if one.within is counter)
            if amount > limit and not counter.is_read:
                never.append(Shortfall(scope, unit, amount, limit))
        return never

    def commit(self, charges: Charges) -> None:
        """Keep these amounts charged for good, whatever the limits: they have been used. Where no limit is, nobody asks."""
        for counter, (_, _, amount) in zip(self.find(charges), charges, strict=True):
            if counter.limit != UNLIMITED:
                counter.committed += amount
                counter.held += amount
                if counter.held > counter.limit:
                    counter.excess = max(counter.excess, counter.held)
                _count_unused((counter,))

    def set(
        self, limits: Iterable[tuple[str, str, int]], floors: tuple[Floor, ...], committed: Charges = (), keeps: bool = False
    ) -> None:
        """Replace every limit and floor. What is held stays held, and what is committed as long as there is a limit.

        A limit of `STANDING` is not known by who tells it yet: what is in force stays, if anything is.
        `keeps`: by the policy in force, so what is not named is only not known there (an engine not reached yet, a period in
        which nobody has asked) and stays, save periods of a quota before the one that is named.
        """
        limits = tuple(limits)
        named = {(scope, unit) for scope, unit, amount in limits if amount != STANDING}
        stands = {(scope, unit) for scope, unit, amount in limits if amount == STANDING}
        periods = {scope.rpartition("@")[0]: scope for scope, _, _ in limits if "@" in scope}
        for (scope, unit), counter in self._counters.items():
            if keeps and (scope, unit) not in named and scope >= periods.get(scope.rpartition("@")[0], ""):
                continue
            if (scope, unit) in stands:
                continue
            counter.limit = UNLIMITED
            counter.excess = 0
        for scope, unit, amount in limits:
            if amount == STANDING:
                continue
            counter = self._counters.get((scope, unit)) or self._add(scope, unit)
            counter.limit = amount
            if counter.held > amount:
                counter.excess = counter.held
        for counter in self._counters.values():
            if counter.committed and counter.limit == UNLIMITED:
                counter.held -= counter.committed
                counter.committed = 0
        self.set_floors(floors)  # by what is held then
        more = [(one, unit, amount - self.committed(one, unit)) for one, unit, amount in committed]
        self.commit([charge for charge in more if charge[2] > 0])

    def set_floors(self, floors: tuple[Floor, ...]) -> None:
        """Replace every floor. What is held stays held."""
        self._floors = floors
        for counter in self._counters.values():
            if counter.is_pinned:
                counter.is_pinned = False
                counter.floor = counter.unused = counter.guaranteed = counter.kept = 0
                counter.within = counter.lent = None
        for floor in floors:
            counter, within = self.find([(floor.scope, floor.unit, 0), (floor.within, floor.unit, 0)])
            counter.is_pinned = within.is_pinned = True
            counter.floor, counter.within = floor.amount, within
            within.guaranteed += floor.amount
            if floor.lent:
                (within.lent,) = self.find([(floor.lent, floor.unit, 0)])
                within.lent.is_pinned = True
            _count_unused((counter,))

    def committed(self, scope: str, unit: str) -> int:
        """What is charged there for good."""
        counter = self._counters.get((scope, unit))
        return counter.committed if counter else 0

    def held(self, scope: str, unit: str) -> int:
        """What is charged to this scope now."""
        counter = self._counters.get((scope, unit))
        return counter.held if counter else 0

    def limit(self, scope: str, unit: str) -> int | None:
        """The limit in force, or None."""
        counter = self._counters.get((scope, unit))
        return None if counter is None or counter.limit == UNLIMITED else counter.limit

    def all(self) -> Iterable[Counter]:
        """Every counter that anybody was charged to or that has a limit, in the order they were first named."""
        return self._counters.values()

    @property
    def floors(self) -> tuple[Floor, ...]:
        """The floors in force."""
        return self._floors

    def find(self, charges: Charges) -> list[Counter]:
        """The counters of these charges, without charging them."""
        return [self._counters.get((scope, unit)) or self._add(scope, unit) for scope, unit, _ in charges]

    def _add(self, scope: str, unit: str) -> Counter:
        if len(self._counters) >= self._sweep_at:
            unused = [key for key, one in self._counters.items() if not (one.held or one.is_pinned) and one.limit == UNLIMITED]
            for key in unused:
                del self._counters[key]
            for counter in (self._leader, *self._counters.values()):
                counter.follower = counter  # nothing may lead to one that was dropped
            self._sweep_at = max(COUNTERS_SWEPT_AT, 2 * len(self._counters))
        counter = self._counters[scope, unit] = Counter(scope, unit)
        self.reading = self.reading or counter.is_read
        self.observing = self.observing or scope.startswith(OBSERVED)
        return counter

    def _shortfalls(self, charges: Charges, taken: Sequence[Counter]) -> list[Shortfall]:
        """What does not fit, while the charges stand in the counters."""
        shortfalls = []
        for (_, _, amount), counter in zip(charges, taken, strict=True):
            held, limit = counter.held, counter.limit
            if held <= limit and counter.guaranteed and counter.lent not in taken:
                limit -= counter.kept - sum(one.unused for one in dict.fromkeys(taken) if one.within is counter)
                held -= counter.lent.held if counter.lent is not None else 0
            if held > limit and amount and not (counter.is_read and held == amount):
                shortfalls.append(Shortfall(counter.scope, counter.unit, held, limit))
        return shortfalls


def _count_unused(counters: Sequence[Counter]) -> None:
    """What these hold has changed, or what is kept for them."""
    for counter in counters:
        within = counter.within
        if within is not None:
            unused = max(0, counter.floor - counter.held)
            within.kept += unused - counter.unused
            counter.unused = unused


def _note_excess(counters: Sequence[Counter]) -> None:
    """They hold more than they may, for a good reason."""
    for counter in counters:
        if counter.held > counter.limit:
            counter.excess = max(counter.excess, counter.held)

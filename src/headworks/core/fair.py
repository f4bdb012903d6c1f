"""Whose turn it is: start-time fair queueing with the tags in the ledger (D1, D2).

What is shared: tokens charged at dispatch (`cost_tokens`) in one pool, over any interval in which two flows are both
backlogged, in proportion to their weights; first among classes, then among the tenants inside a class. Idleness is not
saved up.

Each level (`core/level.py`) keeps a virtual time V and for every flow a tag F, at which its next request starts. A flow that
was idle is first lifted to V; one that waits keeps its tag, however far V goes on meanwhile. A grant sets V = max(V, F), then
F = F + cost ÷ weight. Because V follows the start tags of what is granted, it needs no estimate of the engine's speed.
What was charged wrongly is corrected when the truth is known, by growth and at the end: F moves by the difference ÷ weight,
but not back below V, so that nobody earns a turn by having been wrong.

Gateways queue, the ledger does not; it only remembers who waits. An ask that is not granted leaves a *mark*: flow, owner,
the charges of its head, work waiting behind it, good for 50 ms. A granted ask that has `more` behind it keeps its mark.
An ask is answered `yield` when a fresh mark of another flow has a lower tag and its head fits now. A mark that was woken
because capacity came free and whose gateway does not ask within 20 ms is forgotten until it asks again: unused turns are not
saved. One that is merely not renewed holds nobody up any more, but its flow keeps its tag for a second: a gateway whose own
places are all taken asks nothing, and still has somebody waiting. Whose turn it is, if not the asker's, is told to whoever has
that mark: in the answer if it is the same gateway, and another one is woken for it, once.

A head that does not fit must neither idle the pool nor be starved by small ones: its flow may be passed 16 times, by grants
that take of every scope it lacks; then those asks are told to yield until it fits (the pool saves up for it). The count
starts again when the flow's tags have caught up with V, not with its next head. A head that lacks a scope the asker does
not touch, such as its own tenant's limit, is passed freely, since waiting for it would help nobody.

Bound. Let f and h both be marked or served throughout an interval, W their charged tokens in it, w their weights, L their
largest requests. W/w of a flow grows exactly as its F does, so it is enough that the tags stay together. When f is granted
and h's head fits, F_f ≤ F_h, so F_f goes at most L_f/w_f beyond h's tag, and the other way round: L_f/w_f + L_h/w_h.
While h's head does not fit, f may pass it: q = 16·L_f/w_f in all before h has caught up. A turn can be missed: the mark of
a gateway that is τ away may not be fresh when capacity comes free, and until it asks the others are served at most R·τ,
R the service rate. And F holds estimates until they are settled, error e. In sum
|W_f/w_f − W_h/w_h| ≤ L_f/w_f + L_h/w_h + q + R·τ/min w + e. The ledger is one serial server: the number of gateways does
not stand in it. With classes above tenants the bound holds at each level among that level's flows.

A class floor (`floor_ratio`) is a lower bound on weight ÷ Σ weights of the backlogged classes: the asker raises the weight
it sends; nothing else is needed here.

The flows that wait stand sorted by their tags on each level, so the lowest is found without looking at the others, however
many wait. Only heads that do not fit now are looked past, `LOOKED_PAST_MAX` at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from headworks.core.level import Level
from headworks.core.types import Owner

MARK_MS = 50
WOKEN_MS = 20
MARK_KEPT_MS = 1000
"""A mark that is not renewed holds nobody up after `MARK_MS`, but its flow keeps its tag, and its passes, this much longer."""
PASSES_MAX = 16
MARKS_MAX = 4096
"""Per pool. Above, an ask leaves no mark: shares suffer, limits never."""
LOOKED_PAST_MAX = 64
"""Heads that do not fit and are looked past in search of one that does. Beyond, an ask is not held up by them any more."""

Flow = tuple[str, str]
ONE_FLOW: Flow = ("all", "all")
"""That of all who wait, where no weights decide."""
Charges = Sequence[tuple[str, str, int]]
Lacking = Callable[[Charges], list[tuple[str, str]]]


class Wake(NamedTuple):
    """To be told: capacity came free in a pool, and it is the turn of this flow of this gateway."""

    owner: Owner
    pool: str
    flow: Flow


class Mark:
    """A flow waits at a gateway."""

    __slots__ = ("charges", "expires_ms", "flow", "order", "owner", "passed", "waiting_tokens", "woken_ms")

    def __init__(self, flow: Flow, owner: Owner, order: int) -> None:
        self.flow = flow
        self.owner = owner
        self.order = order
        """Marks are numbered as they come: with equal tags the older one is saved for."""
        self.passed = 0
        self.charges: Charges = ()
        self.waiting_tokens = 0
        self.expires_ms = 0
        self.woken_ms = 0

    def counts(self, now_ms: int) -> bool:
        """It is fresh, and it was not woken in vain."""
        return now_ms < self.expires_ms and (not self.woken_ms or now_ms < self.woken_ms + WOKEN_MS)

    def snapshot(self) -> list[object]:
        """As a JSON-able value."""
        times = [self.expires_ms, self.woken_ms]
        return [self.flow, self.owner, self.order, self.passed, self.charges, self.waiting_tokens, *times]

    @classmethod
    def restored(cls, value: Any) -> Mark:
        """The mark a snapshot was taken of."""
        flow, owner, order, passed, charges, waiting_tokens, expires_ms, woken_ms = value
        mark = cls((flow[0], flow[1]), Owner(*owner), order)
        mark.passed = passed
        mark.charges = tuple((scope, unit, amount) for scope, unit, amount in charges)
        mark.waiting_tokens = waiting_tokens
        mark.expires_ms = expires_ms
        mark.woken_ms = woken_ms
        return mark


class Turns:
    """The flows and marks of one pool."""

    # fmt: off
    __slots__ = (
        "_dormant", "_expire_ms", "_marks_of", "_order", "_waiting_tokens", "classes", "marks", "owed_until_ms", "slots",
        "tenants",
    )
    # fmt: on

    def __init__(self) -> None:
        self.classes = Level()
        self.tenants: dict[str, Level] = {}
        self.marks: OrderedDict[tuple[Flow, Owner], Mark] = OrderedDict()
        """The fresh ones, in the order in which they expire."""
        self._dormant: OrderedDict[tuple[Flow, Owner], Mark] = OrderedDict()
        """Those that were not renewed, likewise."""
        self._marks_of: dict[Flow, dict[Owner, Mark]] = {}
        """Both kinds; of a flow first the gateway that has waited longest since it was granted something."""
        self._expire_ms = 0
        """Before then no mark's time is over."""
        self._order = 0
        self._waiting_tokens = 0
        self.slots: dict[Owner, int] = {}
        """Work of the return slots each gateway has open."""
        self.owed_until_ms = 0
        """Somebody wants what is kept for it and lent: until then nobody else is granted anything."""

    def anybody_before(self, flow: Flow, owner: Owner, now_ms: int) -> bool:
        """Whether somebody else has a tag that is not above this flow's: only then is there anything to yield to or to pass."""
        self._expire(now_ms)
        return any(mark.owner != owner or mark.flow != flow for mark, _ in self._not_behind(flow))

    def must_yield(self, flow: Flow, owner: Owner, charges: Charges, lacking: Lacking, now_ms: int) -> tuple[bool, list[Mark]]:
        """Whether this ask has to let another go first, and whom, if that could start now; else what its grant would pass."""
        own = self._fresh(flow, owner, now_ms)
        own_order = own.order if own else self._order + 1
        passing: list[Mark] = []
        looked = 0
        for mark, lower in self._not_behind(flow):
            if mark is own or not mark.counts(now_ms):
                continue
            looked += 1
            if looked > LOOKED_PAST_MAX:
                break
            lacks = lacking(mark.charges)
            if not lacks:
                if lower:
                    return True, [mark]
            elif _takes_of_all(charges, lacks):
                if mark.passed >= PASSES_MAX and (lower or mark.order < own_order):
                    return True, []
                passing.append(mark)
        return False, passing

    def grant(self, flow: Flow, weights: tuple[float, float], cost_tokens: int, passing: Sequence[Mark], now_ms: int) -> None:
        """The flow's turn is taken."""
        if self.marks or self._dormant:
            self._expire(now_ms)
        level = self.tenants.get(flow[0])
        if level is None:
            level = self.tenants[flow[0]] = Level()
        self.classes.serve(flow[0], cost_tokens / weights[0])
        level.serve(flow[1], cost_tokens / weights[1])
        for mark in passing:
            mark.passed += 1
        own = self._marks_of.get(flow)
        if own and self.classes.caught_up(flow[0]) and level.caught_up(flow[1]):
            for mark in own.values():
                mark.passed = 0

    def correct(self, flow: Flow, weights: tuple[float, float], difference_tokens: int) -> None:
        """More (or less) was used than was charged."""
        level = self.tenants.get(flow[0])
        if level is not None:
            self.classes.correct(flow[0], difference_tokens / weights[0])
            level.correct(flow[1], difference_tokens / weights[1])

    def leave_mark(
        self, flow: Flow, owner: Owner, charges: Charges, waiting_tokens: int, now_ms: int, *, granted: bool
    ) -> None:
        """The flow waits at this gateway: with this head, or after a grant with one that is taken to be like it."""
        mark = self._fresh(flow, owner, now_ms) or self._dormant.pop((flow, owner), None)
        if mark is None:
            if len(self.marks) + len(self._dormant) >= MARKS_MAX:
                return
            mark = self._begin_to_wait(flow, owner)
        else:
            self.tenants[flow[0]].wait(flow[1])
            if granted:
                self._order += 1
                mark.order = self._order
                same_flow = self._marks_of[flow]
                if len(same_flow) > 1:  # its other gateways are woken before this one is again
                    same_flow[owner] = same_flow.pop(owner)
        place = (flow, owner)
        if place in self.marks:
            self._waiting_tokens -= mark.waiting_tokens
            self.marks.move_to_end(place)
        else:
            self.marks[place] = mark
        self._waiting_tokens += waiting_tokens
        mark.charges = charges
        mark.waiting_tokens = waiting_tokens
        mark.expires_ms = now_ms + MARK_MS
        mark.woken_ms = 0

    def unmark(self, flow: Flow, owner: Owner) -> None:
        """Nothing waits there any more."""
        if self.marks or self._dormant:
            mark = self.marks.get((flow, owner)) or self._dormant.get((flow, owner))
            if mark is not None:
                self._drop(mark)

    def note_slots(self, owner: Owner, slots_tokens: int) -> None:
        """Work of return slots this gateway has open."""
        if slots_tokens:
            self.slots[owner] = slots_tokens
        elif owner in self.slots:
            del self.slots[owner]

    def forget(self, owner: Owner) -> None:
        """The gateway is gone: nothing waits there, and its slots are nobody's."""
        for mark in [mark for mark in (*self.marks.values(), *self._dormant.values()) if mark.owner == owner]:
            self._drop(mark)
        self.slots.pop(owner, None)

    def wake(self, lacking: Lacking, now_ms: int) -> Mark | None:
        """Capacity came free: the mark with the lowest tag whose head fits, to be told so; it has 20 ms to ask."""
        looked = 0
        for mark in self._in_turn():
            if mark.counts(now_ms):
                looked += 1
                if not lacking(mark.charges):
                    mark.woken_ms = mark.woken_ms or now_ms
                    return mark
                if looked >= LOOKED_PAST_MAX:
                    break
        return None

    def waiting_tokens(self, now_ms: int) -> int:
        """Work that waits at all gateways, by fresh marks."""
        self._expire(now_ms)
        return self._waiting_tokens

    def slots_tokens(self) -> int:
        """Work of return slots that all gateways have open."""
        return sum(self.slots.values()) if self.slots else 0

    def snapshot(self) -> dict[str, object]:
        """As a JSON-able value."""
        return {
            "virtual": self.classes.virtual,
            "classes": dict(self.classes.finish),
            "tenants": {name: [level.virtual, dict(level.finish)] for name, level in self.tenants.items()},
            "slots": [[*owner, tokens] for owner, tokens in self.slots.items()],
            "order": self._order,
            "owed_until_ms": self.owed_until_ms,
            "marks": [mark.snapshot() for mark in (*self._dormant.values(), *self.marks.values())],
        }

    @classmethod
    def restored(cls, value: Any) -> Turns:
        """The pool a snapshot was taken of."""
        turns = cls()
        turns.classes.virtual = value["virtual"]
        turns.classes.finish = dict(value["classes"])
        for name, (virtual, finish) in value["tenants"].items():
            level = turns.tenants[name] = Level()
            level.virtual = virtual
            level.finish = dict(finish)
        turns.slots = {Owner(gateway, boot): tokens for gateway, boot, tokens in value["slots"]}
        turns._order = value["order"]
        turns.owed_until_ms = value.get("owed_until_ms", 0)
        for mark in map(Mark.restored, value["marks"]):  # all as fresh ones: the next look finds out which are not
            turns._place(mark, again=True)
            turns.marks[mark.flow, mark.owner] = mark
            turns._waiting_tokens += mark.waiting_tokens
        return turns

    def _fresh(self, flow: Flow, owner: Owner, now_ms: int) -> Mark | None:
        """The mark of a flow at a gateway while it counts. One that was woken in vain has lost its turn."""
        self._expire(now_ms)
        mark = self.marks.get((flow, owner))
        if mark is not None and not mark.counts(now_ms):
            self._drop(mark)
            return None
        return mark

    def _begin_to_wait(self, flow: Flow, owner: Owner) -> Mark:
        """Unless others of this class or flow wait already, their tags begin at V."""
        self._order += 1
        mark = Mark(flow, owner, self._order)
        self._place(mark)
        return mark

    def _place(self, mark: Mark, *, again: bool = False) -> None:
        service_class, tenant = mark.flow
        self.classes.wait(service_class, again=again)
        self.tenants.setdefault(service_class, Level()).wait(tenant, again=again)
        self._marks_of.setdefault(mark.flow, {})[mark.owner] = mark

    def _drop(self, mark: Mark) -> None:
        if self.marks.pop((mark.flow, mark.owner), None) is not None:
            self._waiting_tokens -= mark.waiting_tokens
        self._dormant.pop((mark.flow, mark.owner), None)
        same_flow = self._marks_of[mark.flow]
        del same_flow[mark.owner]
        if not same_flow:
            del self._marks_of[mark.flow]
            level = self.tenants[mark.flow[0]]
            level.leave(mark.flow[1])
            if not level.waits:
                self.classes.leave(mark.flow[0])
        else:
            self._rest_if_dormant(mark.flow)

    def _expire(self, now_ms: int) -> None:
        """Marks whose time is over are dormant, and forgotten if they are not renewed."""
        if now_ms < self._expire_ms:
            return
        self._expire_ms = now_ms + MARK_MS
        while self.marks:
            mark = next(iter(self.marks.values()))
            if now_ms < mark.expires_ms:
                self._expire_ms = mark.expires_ms
                break
            del self.marks[mark.flow, mark.owner]
            self._waiting_tokens -= mark.waiting_tokens
            self._dormant[mark.flow, mark.owner] = mark
            self._rest_if_dormant(mark.flow)
        while self._dormant:
            mark = next(iter(self._dormant.values()))
            if now_ms < mark.expires_ms + MARK_KEPT_MS:
                self._expire_ms = min(self._expire_ms, mark.expires_ms + MARK_KEPT_MS)
                break
            self._drop(mark)

    def _rest_if_dormant(self, flow: Flow) -> None:
        """A flow holds nobody up while no gateway has renewed its mark, and need not be looked past."""
        if all((flow, owner) in self._dormant for owner in self._marks_of[flow]):
            self.tenants[flow[0]].rest(flow[1])

    def _not_behind(self, flow: Flow) -> Iterator[tuple[Mark, bool]]:
        """The marks whose tag is not above the flow's own next one, and whether it is lower, lowest first."""
        own_class, own_tenant = flow
        own_tag = self.classes.start(own_class)
        for tag, service_class in self.classes.in_turn():
            if tag > own_tag:
                return
            level = self.tenants[service_class]
            limit = level.start(own_tenant) if service_class == own_class else None
            for tenant_tag, tenant in level.in_turn():
                if limit is not None and tenant_tag > limit:
                    break
                lower = tag < own_tag if limit is None else tenant_tag < limit
                for mark in self._marks_of[service_class, tenant].values():
                    yield mark, lower and mark.flow != flow

    def _in_turn(self) -> Iterator[Mark]:
        """All marks, lowest tag first."""
        for _, service_class in self.classes.in_turn():
            for _, tenant in self.tenants[service_class].in_turn():
                yield from self._marks_of[service_class, tenant].values()


def _takes_of_all(charges: Charges, lacks: Sequence[tuple[str, str]]) -> bool:
    return all(any((one, counted) == (scope, unit) for one, counted, _ in charges) for scope, unit in lacks)

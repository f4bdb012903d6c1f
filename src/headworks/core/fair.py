"""Whose turn it is: start-time fair queueing with the tags in the ledger (D1, D2).

What is shared: tokens charged at dispatch (`cost_tokens`) in one pool, over any interval in which two flows are both
backlogged, in proportion to their weights; first among classes, then among the tenants inside a class. Idleness is not
saved up.

Each level keeps a virtual time V and for every flow a tag F, at which its next request starts. A flow that was idle is first
lifted to V; one that waits keeps its tag, however far V goes on meanwhile. A grant sets V = max(V, F) and then
F = F + cost ÷ weight. Because V follows the start tags of what is granted, it needs no estimate of the engine's speed.
What was charged wrongly is corrected when the truth is known, by growth and at the end: F moves by the difference ÷ weight,
but not back below V, so that nobody earns a turn by having been wrong.

Gateways queue, the ledger does not; it only remembers who waits. An ask that is not granted leaves a *mark*: flow, owner,
the charges of its head, work waiting behind it, good for 50 ms. A granted ask that has `more` behind it keeps its mark.
An ask is answered `yield` when a fresh mark of another flow has a lower tag and its head fits now. A mark that was woken
because capacity came free and whose gateway does not ask within 20 ms no longer counts until it asks again: unused turns
are not saved.

A head that does not fit must neither idle the pool nor be starved by small ones: its flow may be passed 16 times, by grants
that take of every scope it lacks; then those asks are told to yield until it fits (the pool saves up for it). The count
starts again when the flow has caught up, not with its next head. A head that lacks a scope the asker does not touch, such
as its own tenant's limit, is passed freely, since waiting for it would help nobody.

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headworks.core.types import Owner

MARK_MS = 50
WOKEN_MS = 20
MARK_KEPT_MS = 1000
"""A mark that is not renewed counts for `MARK_MS`, but how often it was passed is remembered this long."""
PASSES_MAX = 16
MARKS_MAX = 4096
"""Per pool. Above, an ask leaves no mark: shares suffer, limits never."""
FLOWS_MAX = 4096
"""Per level. Above, flows with F ≤ V are forgotten, which changes nothing: they would start at V anyway."""

Flow = tuple[str, str]
Charges = Sequence[tuple[str, str, int]]
Lacking = Callable[[Charges], list[tuple[str, str]]]


class Level:
    """The virtual time of one pool's classes, or of one class's tenants."""

    __slots__ = ("finish", "virtual")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.finish: dict[str, float] = {}

    def start(self, name: str, waits: bool) -> float:
        """The tag its next request starts at: its own while it waits, not before V if it was idle."""
        finish = self.finish.get(name, 0.0)
        return finish if waits or finish > self.virtual else self.virtual

    def lift(self, name: str) -> float:
        """The flow was idle and begins to wait: from now on it keeps this tag."""
        finish = self.finish.get(name)
        if finish is None and len(self.finish) >= FLOWS_MAX:
            self.finish = {flow: tag for flow, tag in self.finish.items() if tag > self.virtual}
        if finish is None or finish < self.virtual:
            finish = self.finish[name] = self.virtual
        return finish

    def serve(self, name: str, waits: bool, cost_per_weight: float) -> None:
        """A grant: time moves to its start tag."""
        start = self.finish.get(name)
        if start is None or (start < self.virtual and not waits):
            start = self.lift(name)
        if start > self.virtual:
            self.virtual = start
        self.finish[name] = start + cost_per_weight

    def correct(self, name: str, difference_per_weight: float) -> None:
        """The truth about what was charged: move the tag, but not back below V."""
        finish = self.finish.get(name, self.virtual)
        corrected = finish + difference_per_weight
        if corrected < self.virtual:
            corrected = max(corrected, min(finish, self.virtual))
        self.finish[name] = corrected


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

    __slots__ = ("_order", "classes", "marks", "slots", "tenants")

    def __init__(self) -> None:
        self.classes = Level()
        self.tenants: dict[str, Level] = {}
        self.marks: dict[tuple[Flow, Owner], Mark] = {}
        self._order = 0
        self.slots: dict[Owner, int] = {}
        """Work of the return slots each gateway has open."""

    def must_yield(self, flow: Flow, owner: Owner, charges: Charges, lacking: Lacking, now_ms: int) -> tuple[bool, list[Mark]]:
        """Whether this ask has to let another go first; if not, the marks that its grant would pass."""
        own = self.marks.get((flow, owner))
        own_order = own.order if own else self._order + 1
        tags = self._tags(flow, now_ms)
        passing: list[Mark] = []
        for mark in [mark for mark in self.marks.values() if mark is not own and mark.counts(now_ms)]:
            ahead = self._ahead(mark.flow, flow, tags)
            if ahead < 0:
                mark.passed = 0
                continue
            lacks = lacking(mark.charges)
            if not lacks:
                if ahead > 0:
                    return True, []
            elif _takes_of_all(charges, lacks):
                if mark.passed >= PASSES_MAX and (ahead > 0 or mark.order < own_order):
                    return True, []
                passing.append(mark)
        return False, passing

    def grant(self, flow: Flow, weights: tuple[float, float], cost_tokens: int, passing: Sequence[Mark], now_ms: int) -> None:
        """The flow's turn is taken."""
        class_waits, flow_waits = self._waits(flow, now_ms) if self.marks else (False, False)
        level = self.tenants.get(flow[0])
        if level is None:
            level = self.tenants[flow[0]] = Level()
        self.classes.serve(flow[0], class_waits, cost_tokens / weights[0])
        level.serve(flow[1], flow_waits, cost_tokens / weights[1])
        if passing:
            for mark in passing:
                mark.passed += 1

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
        mark = self.marks.get((flow, owner))
        if mark is None or not mark.counts(now_ms):
            self._begin_to_wait(flow, now_ms)
        if mark is None:
            if len(self.marks) >= MARKS_MAX:
                self._sweep(now_ms)
            if len(self.marks) >= MARKS_MAX:
                return
            self._order += 1
            mark = self.marks[flow, owner] = Mark(flow, owner, self._order)
        elif granted:
            self._order += 1
            mark.order = self._order
        elif now_ms >= mark.expires_ms + MARK_KEPT_MS:
            mark.passed = 0
        mark.charges = charges
        mark.waiting_tokens = waiting_tokens
        mark.expires_ms = now_ms + MARK_MS
        mark.woken_ms = 0

    def _begin_to_wait(self, flow: Flow, now_ms: int) -> None:
        """Nobody at this gateway waited: unless others of this class or flow do, their tags begin at V."""
        class_waits, flow_waits = self._waits(flow, now_ms)
        if not class_waits:
            self.classes.lift(flow[0])
        if not flow_waits:
            self.tenants.setdefault(flow[0], Level()).lift(flow[1])

    def unmark(self, flow: Flow, owner: Owner) -> None:
        """Nothing waits there any more."""
        self.marks.pop((flow, owner), None)

    def note_slots(self, owner: Owner, slots_tokens: int) -> None:
        """Work of return slots this gateway has open."""
        if slots_tokens:
            self.slots[owner] = slots_tokens
        elif owner in self.slots:
            del self.slots[owner]

    def forget(self, owner: Owner) -> None:
        """The gateway is gone: nothing waits there, and its slots are nobody's."""
        for key in [key for key in self.marks if key[1] == owner]:
            del self.marks[key]
        self.slots.pop(owner, None)

    def wake(self, lacking: Lacking, now_ms: int) -> Mark | None:
        """Capacity came free: the mark with the lowest tag whose head fits, to be told so; it has 20 ms to ask."""
        fitting = [mark for mark in self.marks.values() if mark.counts(now_ms) and not lacking(mark.charges)]
        if not fitting:
            return None
        lowest = min(fitting, key=self._place)
        lowest.woken_ms = lowest.woken_ms or now_ms
        return lowest

    def waiting_tokens(self, now_ms: int) -> int:
        """Work that waits at all gateways, by fresh marks."""
        return sum(mark.waiting_tokens for mark in self.marks.values() if now_ms < mark.expires_ms)

    def slots_tokens(self) -> int:
        """Work of return slots that all gateways have open."""
        return sum(self.slots.values())

    def snapshot(self) -> dict[str, object]:
        """As a JSON-able value."""
        return {
            "virtual": self.classes.virtual,
            "classes": dict(self.classes.finish),
            "tenants": {name: [level.virtual, dict(level.finish)] for name, level in self.tenants.items()},
            "slots": [[*owner, tokens] for owner, tokens in self.slots.items()],
            "order": self._order,
            "marks": [mark.snapshot() for mark in self.marks.values()],
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
        for mark in map(Mark.restored, value["marks"]):
            turns.marks[mark.flow, mark.owner] = mark
        return turns

    def _waits(self, flow: Flow, now_ms: int) -> tuple[bool, bool]:
        """Whether this class, and this flow, have a mark that counts."""
        class_waits = False
        for mark in self.marks.values():
            if mark.flow[0] == flow[0] and mark.counts(now_ms):
                if mark.flow == flow:
                    return True, True
                class_waits = True
        return class_waits, False

    def _tags(self, flow: Flow, now_ms: int) -> tuple[float, float]:
        """The start tags of a flow's next request, among classes and inside its class."""
        class_waits, flow_waits = self._waits(flow, now_ms)
        level = self.tenants.get(flow[0])
        return self.classes.start(flow[0], class_waits), level.start(flow[1], flow_waits) if level else 0.0

    def _ahead(self, other: Flow, flow: Flow, tags: tuple[float, float]) -> int:
        """1 where the tag of the other, which waits, is lower; 0 where it is the same, or its flow is; else -1."""
        if other == flow:
            return 0
        if other[0] == flow[0]:
            theirs, ours = self.tenants[flow[0]].start(other[1], True), tags[1]
        else:
            theirs, ours = self.classes.start(other[0], True), tags[0]
        return 1 if theirs < ours else 0 if theirs == ours else -1

    def _place(self, mark: Mark) -> tuple[float, float, int]:
        """Where a mark stands in the order of turns."""
        service_class, tenant = mark.flow
        class_tag = self.classes.start(service_class, True)
        return class_tag, self.tenants[service_class].start(tenant, True), mark.order

    def _sweep(self, now_ms: int) -> None:
        """Drop marks long not renewed."""
        for key in [key for key, mark in self.marks.items() if now_ms >= mark.expires_ms + MARK_KEPT_MS]:
            del self.marks[key]


def _takes_of_all(charges: Charges, lacks: Sequence[tuple[str, str]]) -> bool:
    return all(any((one, counted) == (scope, unit) for one, counted, _ in charges) for scope, unit in lacks)

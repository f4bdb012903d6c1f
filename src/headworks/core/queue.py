"""The bounded queue of one (class, tenant), and all queues of a pool together.

A queue buys time, not capacity: it is bounded in requests, in bytes and in age (B6). Leaving from the middle costs the
same as from the front, because clients do leave.

The queue also keeps this gateway's own view of turns (`core/level.py`): which of the flows that wait here has had least of
what was asked for while others waited. It says whom to ask for next; the ledger, which knows what other gateways serve, has
the last word (`core/fair.py`). Where nobody waits nothing is counted: turns are about those who wait at the same time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headworks.core.asks import TRIED_S, Asks
from headworks.core.fair import ONE_FLOW, Flow
from headworks.core.level import Level
from headworks.core.life import Life

if TYPE_CHECKING:
    from headworks.core.lane import Lane


class WaitingLine:
    """What one tenant has waiting in one class: in order of deadline where the discipline wants it, else of arrival."""

    __slots__ = (
        "_by_deadline",
        "_lives",
        "_order",
        "_stands_at",
        "bytes",
        "flow",
        "is_marked",
        "is_tried",
        "ranked_at",
        "share",
        "tokens",
        "told_s",
    )

    def __init__(self, flow: Flow, share: float) -> None:
        self.flow = flow
        self.share = share
        """Its tenant's weight in the class."""
        self.tokens = 0
        self.bytes = 0
        self.is_marked = False
        """The ledger has been told that more of it waits."""
        self.is_tried = False
        """It was sent back: one is asked for at a time, until one is granted."""
        self.told_s = float("-inf")
        """When the ledger was last told of a head that finds no room."""
        self._by_deadline = False
        self.ranked_at: tuple[float, ...] = ()
        """Its place among the lines where they are kept in an order (`PoolQueue.ranked`)."""
        self._order: list[tuple[float, int]] = []
        self._lives: dict[int, Life] = {}
        self._stands_at: dict[int, float] = {}

    def add(self, life: Life) -> None:
        """Join at the life's own place: one that was asked for and not granted comes back to where it stood."""
        self._lives[life.number] = life
        self._place(life)
        self.tokens += life.work.tokens
        self.bytes += life.request.prompt_bytes

    def _place(self, life: Life) -> None:
        place_s = life.start_by_s if self._by_deadline else 0.0
        self._stands_at[life.number] = place_s
        insort(self._order, (place_s, life.number))

    def order(self, by_deadline: bool) -> None:
        """By deadline, or by arrival: another policy may have it otherwise, or other deadlines, so all stand anew."""
        self._by_deadline = by_deadline
        self._order.clear()
        for life in self._lives.values():
            self._place(life)

    def remove(self, life: Life) -> None:
        del self._lives[life.number]
        place_s = self._stands_at.pop(life.number)
        del self._order[bisect_left(self._order, (place_s, life.number))]
        self.tokens -= life.work.tokens
        self.bytes -= life.request.prompt_bytes

    def __contains__(self, life: Life) -> bool:
        return self._lives.get(life.number) is life

    def first(self) -> Life:
        """Its head: whoever has to start first. A line that stands in a queue is never empty."""
        return self._lives[self._order[0][1]]

    def behind_first(self, most: int) -> list[Life]:
        """Whoever stands behind its head, so many at most."""
        return [self._lives[number] for _, number in self._order[1 : 1 + most]]

    def newest(self) -> Life:
        """Of a line in order of arrival."""
        return self._lives[self._order[-1][1]]

    @property
    def requests(self) -> int:
        return len(self._lives)

    def lives(self) -> list[Life]:
        """Everything waiting, in its order."""
        return [self._lives[number] for _, number in self._order]


class WaitingClass:
    """What waits of one class, over all its tenants."""

    __slots__ = ("bytes", "requests", "share", "tenants", "tenants_share", "tokens")

    def __init__(self, share: float) -> None:
        self.share = share
        """Its weight among the classes."""
        self.requests = 0
        self.tokens = 0
        self.bytes = 0
        self.tenants_share = 0.0
        """The weights of its tenants that wait, added up."""
        self.tenants = Level()


NOTHING = WaitingLine(("", ""), 0.0)
"""A line nobody stands in."""
NO_CLASS = WaitingClass(0.0)
Rank = Callable[[WaitingLine], tuple[float, ...]]
"""What the lines of a pool are sorted by, where weights do not decide. No two lines have the same."""


class PoolQueue:
    """All that waits for one pool, by flow, with the totals that checks and forecasts need."""

    # fmt: off
    __slots__ = (
        "_rank", "_ranked", "_turns", "asks", "classes", "inside", "lines", "observed", "requests", "reserved", "tokens",
    )
    # fmt: on

    def __init__(self) -> None:
        self.lines: dict[Flow, WaitingLine] = {}
        self.classes: dict[str, WaitingClass] = {}
        """Every class of which something has waited; bounded by the classes there are."""
        self.inside: dict[int, Life] = {}
        """Calls of sessions, by number: they stand in no line, and go first (`core/session.py`)."""
        self.requests = 0
        self.tokens = 0
        self.asks = Asks()
        """Whom the ledger has sent back, and who may be asked for."""
        self.reserved: dict[Flow, None] = {}
        """Flows of tenants that have a reserve here (`core/reserves.py`), in the order in which they began to wait."""
        self.observed: dict[Flow, None] = {}
        """Flows that nothing is to hold up (F3)."""
        self._turns = Level()
        self._rank: Rank | None = None
        self._ranked: list[tuple[tuple[float, ...], Flow]] = []
        """The lines by rank, from the first time on that somebody asks for them so."""

    def add(self, life: Life) -> None:
        if life.lane.session is not None:
            self._count_inside(life, 1)
            return
        flow = life.lane.flow
        line = self.lines.get(flow)
        if line is None:
            line = self._open(life.lane)
        line.add(life)
        self._count(life, 1)
        if self._rank is not None:
            self._place(line, self._rank)

    def _open(self, lane: Lane) -> WaitingLine:
        service_class, tenant = lane.flow
        line = self.lines[lane.flow] = WaitingLine(lane.flow, lane.tenant_policy.share)
        waiting = self.classes.get(service_class)
        if waiting is None:
            waiting = self.classes[service_class] = WaitingClass(lane.service_class.share)
        self._weigh(line, lane)
        waiting.tenants.wait(tenant)
        self._turns.wait(service_class)
        return line

    def weigh_anew(self) -> None:
        """After a reload: the weights of what waits are those of the lanes it stands in now."""
        for waiting in self.classes.values():
            waiting.tenants_share = 0.0
        for line in self.lines.values():
            self._weigh(line, line.first().lane)
        self._rank = None

    def _weigh(self, line: WaitingLine, lane: Lane) -> None:
        if lane.reserve is not None:
            self.reserved[lane.flow] = None
        else:
            self.reserved.pop(lane.flow, None)
        if lane.observes:
            self.observed[lane.flow] = None
        else:
            self.observed.pop(lane.flow, None)
        line.share = lane.tenant_policy.share if lane.share is None else lane.share.weights[1]
        line.order(lane.by_deadline)
        waiting = self.classes[lane.flow[0]]
        waiting.share = lane.service_class.share if lane.share is None else lane.share.weights[0]
        waiting.tenants_share += line.share

    def _count_inside(self, life: Life, one: int) -> None:
        if one > 0:
            self.inside[life.number] = life
        else:
            del self.inside[life.number]
        self.requests += one
        self.tokens += one * life.work.tokens

    def remove(self, life: Life) -> None:
        if life.lane.session is not None:
            self._count_inside(life, -1)
            return
        flow = life.lane.flow
        line = self.lines[flow]
        line.remove(life)
        self._count(life, -1)
        if not line.requests:
            self._close(life.lane)
        elif self._rank is not None:
            self._place(line, self._rank)

    def _close(self, lane: Lane) -> None:
        service_class, tenant = lane.flow
        line = self.lines.pop(lane.flow)
        self.asks.paused.pop(lane.flow, None)
        self.reserved.pop(lane.flow, None)
        self.observed.pop(lane.flow, None)
        if line.ranked_at:
            self._displace(line)
        waiting = self.classes[service_class]
        waiting.tenants.leave(tenant)
        waiting.tenants_share -= line.share
        if not waiting.requests:
            waiting.tenants_share = 0.0  # whatever rounding left
            self._turns.leave(service_class)

    def _count(self, life: Life, one: int) -> None:
        tokens = one * life.work.tokens
        self.requests += one
        self.tokens += tokens
        waiting = self.classes[life.lane.flow[0]]
        waiting.requests += one
        waiting.tokens += tokens
        waiting.bytes += one * life.request.prompt_bytes

    def of_class(self, service_class: str) -> WaitingClass:
        """What a class has waiting."""
        return self.classes.get(service_class, NO_CLASS) if self.requests else NO_CLASS

    def line(self, flow: Flow) -> WaitingLine:
        """What a flow has waiting."""
        return self.lines.get(flow, NOTHING) if self.requests else NOTHING

    def lives(self) -> list[Life]:
        """Everything waiting, in order of arrival over all flows."""
        found = [*self.inside.values(), *(life for line in self.lines.values() for life in line.lives())]
        found.sort(key=_number)
        return found

    # turns

    def in_turn(self) -> Iterator[WaitingLine]:
        """The lines, whose turn it is first: the lowest class, in it the lowest tenant."""
        for _, service_class in self._turns.in_turn():
            for _, tenant in self.classes[service_class].tenants.in_turn():
                yield self.lines[service_class, tenant]

    def ranked(self, rank: Rank) -> Iterator[WaitingLine]:
        """The lines in the order of their ranks. Finding the first costs nothing, however many there are."""
        if self._rank is not rank:
            self._rank, self._ranked = rank, []
            for line in self.lines.values():
                line.ranked_at = ()
                self._place(line, rank)
        for _, flow in self._ranked:
            yield self.lines[flow]

    def _place(self, line: WaitingLine, rank: Rank) -> None:
        """Whoever is first in it may be another now."""
        place = rank(line)
        if place != line.ranked_at:
            if line.ranked_at:
                self._displace(line)
            line.ranked_at = place
            insort(self._ranked, (place, line.flow))

    def _displace(self, line: WaitingLine) -> None:
        del self._ranked[bisect_left(self._ranked, (line.ranked_at, line.flow))]

    def pause(self, flow: Flow, until_s: float, now_s: float, is_short: bool) -> int:
        """The ledger has sent this flow back: do not ask for it until then. Returns how many are sent back now."""
        line = self.lines.get(flow)
        if line is not None:  # else it is that of all who wait, where no weights decide
            line.is_marked = line.is_tried = True
        return self.asks.sent_back(flow, until_s, now_s, is_short)

    def go_on(self, flow: Flow, now_s: float) -> bool:
        """One was granted. Whether others were waiting for that."""
        line = self.line(flow)
        if self.asks.is_short:
            self.asks.granted(flow, line.requests > 0 or (flow == ONE_FLOW and self.requests > 0), now_s)
            return self.requests > 0
        waited, line.is_tried = line.is_tried, False
        return self.asks.paused.pop(flow, None) is not None and waited

    def serve(self, life: Life, now_s: float) -> WaitingLine:
        """It is being asked for while others wait: this was its flow's turn. Returns what is behind it in its flow."""
        lane = life.lane
        assert lane.share is not None
        service_class, tenant = lane.flow
        waiting = self.classes.get(service_class)
        if waiting is None:
            waiting = self.classes[service_class] = WaitingClass(lane.share.weights[0])
        life.turn_tokens = cost_tokens = life.work.tokens
        life.turn_share = lane.share.weights[1]
        self._turns.serve(service_class, cost_tokens / lane.share.weights[0])
        waiting.tenants.serve(tenant, cost_tokens / life.turn_share)
        line = self.line(lane.flow)
        if line.requests:
            line.is_marked = True
            if line.is_tried:
                self.asks.paused[lane.flow] = now_s + TRIED_S
        return line

    def correct(self, life: Life, used_tokens: int) -> None:
        """What was really used of a turn; 0 of one that was not granted."""
        share = life.lane.share
        difference_tokens, life.turn_tokens = used_tokens - life.turn_tokens, 0
        if share is None or not difference_tokens:
            return
        service_class, tenant = life.lane.flow
        self._turns.correct(service_class, difference_tokens / share.weights[0])
        self.classes[service_class].tenants.correct(tenant, difference_tokens / life.turn_share)


def _number(life: Life) -> int:
    return life.number

"""What engines cost while it happens, for `cost_total`: the statement's own division, made from what the ledger holds (F7).

Nothing is done for a request. At a look (a scrape, or when so many have ended) time goes on for each engine: who ended since
then leaves when it ended, who is in the ledger and was not before enters when it was reserved. What is inside by the ledger
is everybody's, other gateways' and a killed one's as well; counted are those that ended here. The statement (`statement.py`)
has the last word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headworks.core.effects import Outcome
from headworks.core.policy import Policy
from headworks.core.types import Reservation
from headworks.gateway.avoided import UNWANTED, is_avoided, ran
from headworks.gateway.cost_meter import CostMeter
from headworks.gateway.metrics import Reading

ENDED_MAX = 1_024
"""Ends that wait for a look."""
NANO = 1e9
Kind = tuple[str, str]
"""Tenant, and `used`, `wasted` or `avoided`."""
Inside = tuple[str, int, int]
"""On which engine, how many sequences, and the mark of its meter."""


class Costs:
    """One gateway's."""

    def __init__(
        self,
        policy: Policy,
        charged: Callable[[], Sequence[Reservation]],
        ledger_ms: Callable[[], int],
        clock_s: Callable[[], float],
    ) -> None:
        """`charged`: what the ledger holds, on the ledger's clock; records of this gateway are on `clock_s`."""
        self._charged = charged
        self._ledger_ms = ledger_ms
        self._clock_s = clock_s
        self._meters: dict[str, CostMeter] = {}
        self._inside: dict[str, Inside] = {}
        self._over: dict[str, None] = {}
        """What has ended here and is still in the ledger by what is known of it: a shared one is looked at now and then."""
        self._ended: list[Outcome] = []
        self._avoided: list[Outcome] = []
        self._nanomoney: dict[Kind, int] = {}
        self._spent: dict[str, tuple[int, int]] = {}
        """By pool, what ended there has cost, and the tokens that were reserved for it."""
        self.change_policy(policy)

    def change_policy(self, policy: Policy) -> None:
        """Engines cost this from now on; those that are not named any more cost nothing."""
        if self._meters:
            self._look()
        now_ms = self._now_ms()
        prices = {one.name: pool.nanomoney_per_h for pool in policy.pools.values() for one in pool.replicas}
        for name, nanomoney_per_h in prices.items():
            if nanomoney_per_h and name not in self._meters:
                self._meters[name] = CostMeter(now_ms, nanomoney_per_h)
        for name, meter in self._meters.items():
            meter.nanomoney_per_h = prices.get(name, 0)

    def ended(self, outcome: Outcome) -> None:
        """An arrival has ended."""
        if not self._meters:
            return
        (self._ended if ran(outcome) else self._avoided).append(outcome)
        if len(self._ended) + len(self._avoided) >= ENDED_MAX:
            self._look()

    def readings(self) -> Iterator[Reading]:
        """What everything that ended up to now has cost."""
        if not self._meters:
            return
        self._look()
        for (tenant, kind), nanomoney in self._nanomoney.items():
            yield Reading("cost_total", (tenant, kind), nanomoney / NANO)

    # a look

    def _now_ms(self) -> int:
        return round(self._clock_s() * 1000)

    def _look(self) -> None:
        """Everything up to now, in the order in which it happened; at one instant who ends does so first."""
        ended, self._ended = self._ended, []
        now_ms = self._now_ms()
        moves: list[tuple[int, int, str, Inside | Outcome]] = []
        for outcome in ended:
            if outcome.replica not in self._meters:
                continue
            began_ms, ended_ms = round((outcome.sent_s or outcome.ended_s) * 1000), round(outcome.ended_s * 1000)
            if outcome.execution not in self._inside and began_ms < ended_ms:
                moves.append((began_ms, 1, outcome.execution, (outcome.replica, outcome.work.sequences, 0)))
            moves.append((ended_ms, 0, outcome.execution, outcome))
        here = {name for _, _, name, _ in moves}
        held = {record.execution: record for record in self._charged()}
        self._over = {name: None for name in (*self._over, *here) if name in held}
        gone = [name for name in self._inside if name not in held and name not in here]
        for record in held.values():
            known = record.execution in self._inside or record.execution in self._over
            if not known and record.replica in self._meters:
                began_ms = now_ms - (self._ledger_ms() - record.reserved_ms)
                moves.append((began_ms, 1, record.execution, (record.replica, _sequences(record), 0)))
        for at_ms, _, name, what in sorted(moves, key=lambda move: move[:2]):
            self._move(min(at_ms, now_ms), name, what)
        for meter in self._meters.values():
            meter.to(now_ms)
        for name in gone:  # another gateway's, or nobody's: it was counted elsewhere, or not at all
            replica, sequences, mark = self._inside.pop(name)
            self._meters[replica].leave(sequences, mark)
        self._estimate()

    def _move(self, at_ms: int, name: str, what: Inside | Outcome) -> None:
        """One execution begins or ends."""
        if isinstance(what, Outcome):
            cost = 0  # of one that began and ended in one millisecond
            if name in self._inside:
                replica, sequences, mark = self._inside.pop(name)
                self._meters[replica].to(at_ms)
                cost = self._meters[replica].leave(sequences, mark)
            self._count(what, cost)
        else:
            meter = self._meters[what[0]]
            meter.to(at_ms)
            self._inside[name] = what[0], what[1], meter.enter(what[1])

    def _count(self, outcome: Outcome, nanomoney: int) -> None:
        kind = outcome.key.tenant, "wasted" if outcome.outcome in UNWANTED else "used"
        self._nanomoney[kind] = self._nanomoney.get(kind, 0) + nanomoney
        cost, tokens = self._spent.get(outcome.pool, (0, 0))
        self._spent[outcome.pool] = cost + nanomoney, tokens + outcome.work.tokens
        usage = outcome.usage
        if outcome.outcome == "cancelled" and usage is not None:
            self._avoid(outcome, max(0, outcome.work.tokens - usage.prompt_tokens - usage.output_tokens))

    def _estimate(self) -> None:
        """What was not done, at what a reserved token has cost so far."""
        avoided, self._avoided = self._avoided, []
        for outcome in avoided:
            if is_avoided(outcome):
                self._avoid(outcome, outcome.work.tokens)

    def _avoid(self, outcome: Outcome, tokens: int) -> None:
        cost, reserved = self._spent.get(outcome.pool, (0, 0))
        if reserved:
            kind = outcome.key.tenant, "avoided"
            self._nanomoney[kind] = self._nanomoney.get(kind, 0) + tokens * cost // reserved


def _sequences(record: Reservation) -> int:
    """How many the ledger has charged to its engine."""
    scope = f"replica:{record.replica}"
    return next((amount for where, unit, amount in record.charges if where == scope and unit == "requests"), 1)

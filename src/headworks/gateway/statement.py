"""The statement: what engines cost in a period, and who caused how much of it, from the usage journal alone (F7).

    cost of the pools = used + wasted + idle, in whole billionths
        used      answers that were complete
        wasted    executions whose answer nobody got in full: cancelled, failed, over their time
        idle      nothing was inside, or nothing that the journal knows: what a killed gateway could not write down is here

Any number of gateways may write into the directory, and any of them may have been killed: each moment of each engine is
divided among what all lines together say was inside (`cost_meter.py`), so nothing is counted twice and nothing gets lost. An
engine costs from the first line that names it with a price until one that does not. What is bought elsewhere by the token
(`spill`) costs what its line says was paid.

Executions, tokens and bills belong to the period in which the execution was admitted, as in quotas; costs to the time
in which they arose. Files of the day before and of the day after are read too: what waited for the disk at midnight is in
another one, and nothing runs for more than a day. A period that is not over yet is counted up to the end of this second,
without what still runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from headworks.core.quota import DAY_S, Period
from headworks.gateway.avoided import UNWANTED
from headworks.gateway.cost_meter import HOUR_MS, CostMeter
from headworks.gateway.cost_moves import ENTERED, LEFT, PRICED, RUN_MAX, Move, Moves
from headworks.gateway.usage_files import day, day_of, paths

RATES = b'{"rates":'
"""How a line about prices begins."""
DAYS_MAX = 400
ROWS_MAX = 100_000
"""Tenants, clients, models and pools that one statement tells apart; the rest of a tenant is one row."""
OTHERS = "other"
About = tuple[str, str, str, str]
"""Tenant, client, model and pool."""


class Rate(msgspec.Struct):
    """What engines of a pool cost."""

    replicas: list[str]
    nanomoney_per_h: int


class Entry(msgspec.Struct, gc=False):
    """Any line of the journal."""

    tenant: str = ""
    client: str = ""
    model: str = ""
    pool: str = ""
    replica: str = ""
    execution: str = ""
    charged_utc_s: int = 0
    sent_utc_s: float = 0.0
    ended_utc_s: float = 0.0
    sequences: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reserved_tokens: int = 0
    end: str = ""
    billed_tokens: int = 0
    billed_nanomoney: int = 0
    paid_nanomoney: int | None = None
    avoided_requests: int = 0
    avoided_tokens: int = 0
    rates: dict[str, Rate] | None = None
    at_utc_s: float = 0.0

    @property
    def about(self) -> About:
        """What it counts for."""
        return self.tenant, self.client, self.model, self.pool


@dataclass(slots=True)
class Sums:
    """What one row has come to. Money is in billionths."""

    executions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reserved_tokens: int = 0
    billed_tokens: int = 0
    billed_nanomoney: int = 0
    used_nanomoney: int = 0
    wasted_nanomoney: int = 0
    avoided_requests: int = 0
    avoided_tokens: int = 0
    avoided_nanomoney: int = 0

    @property
    def cost_nanomoney(self) -> int:
        """What it caused."""
        return self.used_nanomoney + self.wasted_nanomoney

    def add(self, other: Sums) -> None:
        """Both together."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, entry: Entry) -> None:
        """One execution more."""
        self.executions += 1
        self.prompt_tokens += entry.prompt_tokens
        self.cached_tokens += entry.cached_tokens
        self.output_tokens += entry.output_tokens
        self.reserved_tokens += entry.reserved_tokens
        self.billed_tokens += entry.billed_tokens
        self.billed_nanomoney += entry.billed_nanomoney
        if entry.end == "cancelled" and entry.prompt_tokens:  # else nobody knows what of its prompt had been read
            self.avoided_tokens += max(0, entry.reserved_tokens - entry.prompt_tokens - entry.output_tokens)

    def cost(self, is_wasted: bool, nanomoney: int) -> None:
        """What an execution cost, or a part of that."""
        if is_wasted:
            self.wasted_nanomoney += nanomoney
        else:
            self.used_nanomoney += nanomoney


@dataclass(slots=True)
class PoolCost:
    """What one pool cost in the period: `total` is the price of its engines times the time, `idle` what nobody caused."""

    total_nanomoney: int = 0
    idle_nanomoney: int = 0
    expected_nanomoney: int = 0
    """The total once more, reckoned from prices and times alone."""
    engines: int = 0
    """Each is summed up to less than a billionth."""


@dataclass(slots=True)
class Statement:
    """One period."""

    begins_s: int
    ends_s: int
    rows: dict[About, Sums] = field(default_factory=dict)
    pools: dict[str, PoolCost] = field(default_factory=dict)
    unread: int = 0
    """Lines that are none: cut short by a crash, or damaged."""

    def row(self, about: About) -> Sums:
        """Its row."""
        if about not in self.rows and len(self.rows) >= ROWS_MAX:
            about = about[0], OTHERS, OTHERS, about[3]
        found = self.rows.get(about)
        if found is None:
            found = self.rows[about] = Sums()
        return found

    @property
    def total(self) -> Sums:
        """All rows together."""
        found = Sums()
        for row in self.rows.values():
            found.add(row)
        return found

    def differences(self) -> list[str]:
        """A sentence for each pool whose rows and idle time are not together what it cost; none means it adds up."""
        caused: dict[str, int] = {}
        for about, row in self.rows.items():
            caused[about[3]] = caused.get(about[3], 0) + row.cost_nanomoney
        found = []
        for name, pool in self.pools.items():
            parts = caused.get(name, 0) + pool.idle_nanomoney
            if parts != pool.total_nanomoney or not 0 <= pool.expected_nanomoney - pool.total_nanomoney <= pool.engines:
                found.append(f"{name} cost {pool.expected_nanomoney} billionths, and its parts are {parts}.")
        return found


def statement(directory: Path, period: Period, now_s: float, run_max: int = RUN_MAX) -> Statement:
    """What the journal in this directory has about a period. Its lines are read once, and none is kept: of the moves they
    make, so many are in memory."""
    ends_s = min(period.ends_s, period.begins_s + DAYS_MAX * DAY_S, max(math.ceil(now_s), period.begins_s))
    made = Statement(period.begins_s, ends_s)
    with Moves(run_max) as moves:
        reading = _Reading(directory, made, moves)
        reading.read()
        _divide(made, reading, moves)
    _avoided(made)
    return made


class _Reading:
    """Reads the files: counts what is about the period, and puts down who was inside which engine when."""

    def __init__(self, directory: Path, made: Statement, moves: Moves) -> None:
        self._made = made
        self._moves = moves
        self._decode = msgspec.json.Decoder(Entry).decode
        self._by_day: dict[str, list[Path]] = {}
        for path in paths(directory):
            self._by_day.setdefault(day_of(path), []).append(path)
        self.rates: list[tuple[int, dict[str, Rate]]] = []
        """From when on engines cost what; the last one before the period comes first."""
        self.engines: dict[str, int] = {}
        """What they are called in a move."""
        self.abouts: dict[About, int] = {}
        """Likewise what an execution counts for."""
        self._executions = 0

    def read(self) -> None:
        """The last prices of before, then each day that may tell of the period."""
        made, names = self._made, sorted(self._by_day)
        begins = day(made.begins_s)
        for name in reversed([name for name in names if name < begins]):
            for entry in self._entries(name, only=RATES):
                self._note(entry)
            if self.rates:
                break
        first, last = day(made.begins_s - DAY_S), day(made.ends_s + DAY_S)
        for name in names:
            if first <= name <= last:
                for entry in self._entries(name):
                    if name >= begins:
                        self._note(entry)
                    self._count(entry)
        self.rates.sort(key=lambda pair: pair[0])

    def _entries(self, name: str, only: bytes = b"") -> Iterator[Entry]:
        for path in self._by_day[name]:
            with path.open("rb") as file:
                for text in file:
                    if only and only not in text:
                        continue
                    try:
                        yield self._decode(text)
                    except msgspec.DecodeError:
                        self._made.unread += 1

    def _note(self, entry: Entry) -> None:
        if entry.rates is not None:
            self.rates.append((round(entry.at_utc_s * 1000), entry.rates))

    def _count(self, entry: Entry) -> None:
        """What a line says, as far as it is about the period."""
        made = self._made
        begins_s, ends_s = made.begins_s, made.ends_s
        if entry.execution and begins_s <= entry.charged_utc_s < ends_s:
            made.row(entry.about).count(entry)
            if entry.paid_nanomoney is not None:
                made.row(entry.about).cost(entry.end in UNWANTED, entry.paid_nanomoney)
                bought = made.pools.setdefault(entry.pool, PoolCost())
                bought.total_nanomoney += entry.paid_nanomoney
                bought.expected_nanomoney += entry.paid_nanomoney
        elif begins_s <= entry.at_utc_s < ends_s and entry.avoided_requests:
            row = made.row(entry.about)
            row.avoided_requests += entry.avoided_requests
            row.avoided_tokens += entry.avoided_tokens
        if entry.execution and entry.sent_utc_s < ends_s and entry.ended_utc_s > begins_s:
            self._put_down(entry)

    def _put_down(self, entry: Entry) -> None:
        """When it entered its engine and when it left it, within the period."""
        enters_ms = max(self._made.begins_s * 1000, round(entry.sent_utc_s * 1000))
        leaves_ms = min(self._made.ends_s * 1000, round(entry.ended_utc_s * 1000))
        if enters_ms >= leaves_ms:
            return
        about = entry.about
        if about not in self.abouts and len(self.abouts) >= ROWS_MAX:
            about = about[0], OTHERS, OTHERS, about[3]
        self._executions += 1
        engine = self.engines.setdefault(entry.replica, len(self.engines))
        its = self._executions, entry.sequences, self.abouts.setdefault(about, len(self.abouts)), int(entry.end in UNWANTED)
        self._moves.add((engine, enters_ms, ENTERED, *its))
        self._moves.add((engine, leaves_ms, LEFT, *its))


Price = tuple[int, int, str]
"""From this millisecond on, so many billionths an hour, in this pool."""


def _prices(rates: list[tuple[int, dict[str, Rate]]], begins_ms: int, ends_ms: int) -> dict[str, list[Price]]:
    """By engine, what it costs from when on within these bounds."""
    known = [pair for pair in rates if pair[0] < ends_ms]
    before = [pair for pair in known if pair[0] <= begins_ms]
    inside = [(begins_ms, before[-1][1])] if before else []
    inside += [pair for pair in known if pair[0] > begins_ms]
    found: dict[str, list[Price]] = {}
    for at_ms, by_pool in inside:
        named = {replica: (pool, rate) for pool, rate in by_pool.items() for replica in rate.replicas}
        for replica, (pool, rate) in named.items():
            found.setdefault(replica, []).append((at_ms, rate.nanomoney_per_h, pool))
        for replica, prices in found.items():
            if replica not in named:
                prices.append((at_ms, 0, prices[-1][2]))
    return found


def _divide(made: Statement, reading: _Reading, moves: Moves) -> None:
    """What each engine cost, among what was inside it."""
    begins_ms, ends_ms = made.begins_s * 1000, made.ends_s * 1000
    prices, abouts = _prices(reading.rates, begins_ms, ends_ms), list(reading.abouts)
    for replica, its in prices.items():
        engine = reading.engines.setdefault(replica, len(reading.engines))
        for number, (at_ms, _, _) in enumerate(its):
            moves.add((engine, at_ms, PRICED, number, 0, 0, 0))
    names = list(reading.engines)
    for engine, of_it in groupby(moves.in_order(), key=itemgetter(0)):
        if names[engine] in prices:
            _engine(made, prices[names[engine]], of_it, abouts, begins_ms, ends_ms)


def _engine(
    made: Statement, prices: list[Price], moves: Iterable[Move], abouts: Sequence[About], begins_ms: int, ends_ms: int
) -> None:
    """Divide what one engine cost."""
    meter = CostMeter(begins_ms, 0)
    marks: dict[int, int] = {}
    """Of what is inside."""
    for _, at_ms, move, number, sequences, about, is_wasted in moves:
        meter.to(min(at_ms, ends_ms))
        if move == PRICED:
            meter.nanomoney_per_h = prices[number][1]
        elif move == ENTERED:
            marks[number] = meter.enter(sequences)
        else:
            made.row(abouts[about]).cost(bool(is_wasted), meter.leave(sequences, marks.pop(number)))
    meter.to(ends_ms)
    pool = made.pools.setdefault(prices[0][2], PoolCost())
    pool.total_nanomoney += meter.total
    pool.idle_nanomoney += meter.idle
    pool.engines += 1
    ends = [at_ms for at_ms, _, _ in prices[1:]] + [ends_ms]
    parts = sum((end_ms - at_ms) * per_h for (at_ms, per_h, _), end_ms in zip(prices, ends, strict=True))
    pool.expected_nanomoney += -(-parts // HOUR_MS)


def _avoided(made: Statement) -> None:
    """What work would have cost that was not done: its reserve, at what a reserved token has cost in its pool."""
    cost: dict[str, Sums] = {}
    for (_, _, _, pool), row in made.rows.items():
        cost.setdefault(pool, Sums()).add(row)
    for (_, _, _, pool), row in made.rows.items():
        of_all = cost[pool]
        if of_all.reserved_tokens:
            row.avoided_nanomoney = row.avoided_tokens * of_all.cost_nanomoney // of_all.reserved_tokens

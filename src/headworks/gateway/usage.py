"""The usage journal: one JSON line for each execution that ended, in files of a day (F7). Quotas and statements rest on it.

    {"tenant":"acme","client":"acme/ACME_KEY","model":"…","pool":"llama","replica":"llama/0","price_version":"…",
     "execution":"…","charged_utc_s":1796007595,"sent_utc_s":1796007595.102,"ended_utc_s":1796007597.312,"sequences":1,
     "prompt_tokens":31,"cached_tokens":0,"output_tokens":64,"exact":true,"reserved_tokens":295,"end":"completed",
     "evidence":"E1","billed_tokens":95,"billed_nanomoney":28700}

Where engines have a price, what each costs stands there too, at the start, in each file, and whenever it changes; and, summed
up every few seconds, the work that was not done because its answer would have come to nobody (`avoided.py`):

    {"rates":{"llama":{"replicas":["llama/0"],"nanomoney_per_h":5120000000}},"price_version":"…","at_utc_s":1796007595.000}
    {"tenant":"acme","client":"acme/ACME_KEY","model":"…","pool":"llama","avoided_requests":7,"avoided_tokens":1960,…}

It is only ever appended to. A line is in the operating system's hands within `FLUSH_S` of the end: a thread of its own writes
down what has ended since, which costs a tenth of writing each by itself. A process that is killed outright can lose what it
had not handed over. A disk that refuses is tried again and again: lines wait, bounded and in order, and none is written twice.

An execution belongs to the hour in which it was admitted, like its charge in the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from headworks.core.effects import Outcome
from headworks.core.policy import MIRROR, Policy, PricePolicy
from headworks.core.quota import FREE, HOUR_S, Period, billed
from headworks.core.types import Usage
from headworks.gateway.avoided import AvoidedWork, is_avoided, ran
from headworks.gateway.log_records import UsageLine
from headworks.gateway.usage_files import Billed, File, add

FLUSH_S = 0.1
BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Lines that wait for the disk."""
LINE_BYTES = 512
"""What one that is not written down yet is counted as."""
TERMS_MAX = 4_096
UNKNOWN = Usage(0, 0, 0, 0.0, "", False)


class Others(NamedTuple):
    """What the files hold that are not being written here, as of a turn of this journal's own file."""

    turn: int
    totals: list[Billed]


class UsageJournal:
    """The journal of one gateway. Only it writes to its files; those of others in the directory it reads."""

    def __init__(
        self,
        directory: Path,
        policy: Policy,
        *,
        utc_s: Callable[[], float],
        offset_s: float,
        keep_days: int = 400,
        flush_s: float = FLUSH_S,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """`utc_s`: Unix time by the clock of records, and `offset_s` what it is ahead of it, both as the gate counts periods:
        nobody who sets the machine's clock moves a line. `on_failure` hears once what a disk says."""
        self._policy = policy
        self._offset_s = offset_s
        self._utc_s = utc_s
        self._terms: dict[tuple[str, str], tuple[PricePolicy, bool]] = {}
        self._avoided = AvoidedWork()
        self._has_rates = False
        """Engines cost something, by the last line about that."""
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._lock = threading.Lock()
        """Held while lines are made or taken; for file work only at the turn of a day."""
        self._ended: list[Outcome] = []
        """Not written down yet. Put down without the lock, so they are only ever added behind the others."""
        self._buffer = bytearray()
        self._totals: Billed = {}
        """Of the running file."""
        self._turn = 0
        """How many files have been finished: what was in one is among the others from then on."""
        self.directory = directory
        self._file = File(directory, keep_days)
        self._writing = threading.Lock()
        self._on_failure = on_failure
        self.dropped = 0
        """Lines that did not fit any more, because the disk has been refusing for long."""
        self._buffer += self._rates()
        self._flush_s = flush_s
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="usage-journal", daemon=True)
        self._writer.start()

    def change_policy(self, policy: Policy) -> None:
        """Quotas and prices of what ends from now on."""
        with self._lock:
            self._write_down()
            self._terms.clear()
            before, self._policy = _costs(self._policy), policy
            if _costs(policy) != before:
                self._buffer += self._rates()

    def _rates(self) -> bytes:
        """What engines cost from now on, as a line; nothing where none has a price. The caller holds the lock."""
        rates = _costs(self._policy)
        line = {"rates": rates, "price_version": self._policy.price_version, "at_utc_s": round(self._utc_s(), 3)}
        has_ended = not rates and self._has_rates
        self._has_rates = bool(rates)
        return msgspec.json.encode(line) + b"\n" if rates or has_ended else b""

    def write(self, outcome: Outcome) -> None:
        """Put an execution down that has ended: one that was sent, whatever became of it; or need not be any more."""
        if not ran(outcome) and not (self._has_rates and is_avoided(outcome)):
            return
        if len(self._buffer) + LINE_BYTES * len(self._ended) > BUFFER_BYTES_MAX:
            self.dropped += 1
        else:
            self._ended.append(outcome)

    def encode(self) -> None:
        """What has ended becomes lines now; they wait for the disk."""
        with self._lock:
            self._write_down()

    def _write_down(self) -> None:
        """What has ended since, as lines. The caller holds the lock."""
        count = len(self._ended)
        ended = self._ended[:count]
        del self._ended[:count]
        if ended:
            self._buffer += self._encode_lines([self._line(outcome) for outcome in ended if ran(outcome)])
        if self._has_rates:
            self._avoided.count([outcome for outcome in ended if not ran(outcome)])
            self._buffer += self._avoided.lines(self._utc_s())

    def _line(self, outcome: Outcome) -> UsageLine:
        usage, work, tenant = outcome.usage, outcome.work, outcome.key.tenant
        terms = self._terms.get((tenant, outcome.model))
        price, bills_reserved = self._terms_of(tenant, outcome.model) if terms is None else terms
        assert outcome.admitted_s is not None
        charged_utc_s = int(outcome.admitted_s + self._offset_s)
        tokens, nanomoney = billed(usage, work, price, bills_reserved and outcome.outcome == "cancelled")
        add(self._totals, charged_utc_s, tenant, tokens, nanomoney)
        used = UNKNOWN if usage is None else usage
        sent_s = outcome.admitted_s if outcome.sent_s is None else outcome.sent_s
        pool = self._policy.pools.get(outcome.pool)
        paid: int | UnsetType = UNSET
        if pool is not None and pool.spill is not None:
            paid = pool.spill.price.nanomoney(used.prompt_tokens, used.cached_tokens, used.output_tokens)
        return UsageLine(
            tenant,
            outcome.client,
            outcome.model,
            outcome.pool,
            outcome.replica,
            self._policy.price_version,
            outcome.execution,
            charged_utc_s,
            int((sent_s + self._offset_s) * 1000.0 + 0.5) / 1000.0,
            int((outcome.ended_s + self._offset_s) * 1000.0 + 0.5) / 1000.0,
            work.sequences,
            used.prompt_tokens,
            used.cached_tokens,
            used.output_tokens,
            used.exact,
            work.tokens,
            outcome.outcome,
            outcome.evidence,
            tokens,
            nanomoney,
            paid,
        )

    def _terms_of(self, tenant: str, model: str) -> tuple[PricePolicy, bool]:
        """The price, and whether what was reserved is billed for what was cancelled."""
        policy = self._policy
        limits = policy.tenants.get(tenant)
        bills_reserved = limits is not None and limits.quota is not None and limits.quota.bill == "reserved"
        if len(self._terms) >= TERMS_MAX:
            self._terms.clear()
        terms = FREE if tenant == MIRROR else policy.prices.get(model, FREE), bills_reserved
        self._terms[tenant, model] = terms
        return terms

    def others(self, periods: Mapping[str, Period]) -> Others:
        """Read the other files as far as these periods need. May take long: files of killed processes are read line by line."""
        begins_s = min((one.begins_s for one in periods.values()), default=0)
        with self._writing:  # no file is finished meanwhile
            return Others(self._turn, list(self._file.others(begins_s, self._utc_s())))

    def used(self, periods: Mapping[str, Period], others: Others | None = None) -> dict[str, tuple[int, int]]:
        """Tokens and billionths of money that tenants were billed for what was admitted in these periods, by every file.

        Whoever has read the `others` before, aside, has no file work to wait for here, unless midnight came in between.
        """
        turn, own = self._own()
        while others is None or others.turn != turn:
            others = self.others(periods)
            turn, own = self._own()
        sums = dict.fromkeys(periods, (0, 0))
        for totals in (own, *others.totals):
            for hour, by_tenant in totals.items():
                for tenant, (tokens, nanomoney) in by_tenant.items():
                    wanted = periods.get(tenant)
                    if wanted is not None and wanted.begins_s <= hour * HOUR_S < wanted.ends_s:
                        sums[tenant] = (sums[tenant][0] + tokens, sums[tenant][1] + nanomoney)
        return sums

    def _own(self) -> tuple[int, Billed]:
        with self._lock:
            self._write_down()
            return self._turn, {hour: dict(by_tenant) for hour, by_tenant in self._totals.items()}

    @property
    def failure(self) -> str:
        """What the disk said last, empty while it takes everything."""
        return self._file.failure

    def flush(self) -> None:
        """Hand everything over now; what the disk does not take stays here, in order."""
        with self._writing:
            utc_s = self._utc_s()
            if self._file.is_over(utc_s):
                self._turn_over()
            with self._lock:
                self._write_down()
                waiting, self._buffer = self._buffer, bytearray()
            failure = self._file.failure
            written = self._file.append(waiting, utc_s) if waiting else 0
            if written < len(waiting):
                with self._lock:
                    self._buffer = waiting[written:] + self._buffer
                if self._on_failure is not None and not failure:
                    self._on_failure(self._file.failure)

    def _turn_over(self) -> None:
        """A file of another day: what waits still belongs to the old one, so that its totals are whole."""
        with self._lock:
            self._write_down()
            if self._buffer:
                waiting, self._buffer = self._buffer, bytearray()
                written = self._file.append(waiting, None)
                if written < len(waiting):
                    self._buffer = waiting[written:]
                    return
            totals, self._totals = self._totals, {}
            self._turn += 1
            self._buffer += self._rates()
        self._file.finish(totals)

    def close(self) -> None:
        """Everything is in the file when this returns, if the disk takes it."""
        self._closing.set()
        self._writer.join()
        self._avoided.is_due = True
        self.flush()
        with self._writing:
            if not self._buffer:
                self._file.finish(self._totals)
                self._totals = {}

    def _write_on(self) -> None:
        while not self._closing.wait(self._flush_s):
            self.flush()


def _costs(policy: Policy) -> dict[str, dict[str, object]]:
    """By pool, which engines cost what."""
    return {
        name: {"replicas": [one.name for one in pool.replicas], "nanomoney_per_h": pool.nanomoney_per_h}
        for name, pool in policy.pools.items()
        if pool.nanomoney_per_h
    }

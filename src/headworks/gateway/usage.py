"""The usage journal: one JSON line for each execution that ended, in files of a day (F7). Quotas and statements rest on it.

    {"tenant":"acme","client":"acme/ACME_KEY","model":"…","pool":"llama","price_version":"…","execution":"…",
     "charged_utc_s":1796007595,"ended_utc_s":1796007597.312,"prompt_tokens":31,"cached_tokens":0,"output_tokens":64,
     "exact":true,"reserved_tokens":295,"end":"completed","evidence":"E1","billed_tokens":95,"billed_nanomoney":28700}

It is only ever appended to. A line is in the operating system's hands within `FLUSH_S` of the end: a thread of its own writes
down what has ended since, which costs a tenth of writing each by itself. A process that is killed outright can lose what it
had not handed over. A disk that refuses is tried again and again: lines wait, bounded and in order, and none is written twice.

Beside a file that is complete stands `….totals.json`: what each tenant was billed in each hour, so that a start need not
read a month of lines. An execution belongs to the hour in which it was admitted, like its charge in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from headworks.core.effects import Outcome
from headworks.core.policy import Policy, PricePolicy
from headworks.core.quota import DAY_S, FREE, HOUR_S, Period, billed
from headworks.core.types import Usage
from headworks.gateway.log_records import Bill, UsageLine

FLUSH_S = 0.1
BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Lines that wait for the disk."""
LINE_BYTES = 512
"""What one that is not written down yet is counted as."""
TERMS_MAX = 4_096
UNKNOWN = Usage(0, 0, 0, 0.0, "", False)
SETTLED_S = 2 * DAY_S
"""A file not written to for so long has no writer any more: its totals may be kept beside it."""
Billed = dict[int, dict[str, tuple[int, int]]]
"""Hour of Unix time → tenant → tokens and billionths of money."""


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
        self._file = _File(directory, keep_days)
        self._writing = threading.Lock()
        self._on_failure = on_failure
        self.dropped = 0
        """Lines that did not fit any more, because the disk has been refusing for long."""
        self._flush_s = flush_s
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="usage-journal", daemon=True)
        self._writer.start()

    def change_policy(self, policy: Policy) -> None:
        """Quotas and prices of what ends from now on."""
        with self._lock:
            self._write_down()
            self._terms.clear()
            self._policy = policy

    def write(self, outcome: Outcome) -> None:
        """Put an execution down that has ended: one that was sent, whatever became of it."""
        if outcome.admitted_s is None or not outcome.evidence or outcome.evidence == "E0":
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
            self._buffer += self._encode_lines([self._line(outcome) for outcome in ended])

    def _line(self, outcome: Outcome) -> UsageLine:
        usage, work, tenant = outcome.usage, outcome.work, outcome.key.tenant
        terms = self._terms.get((tenant, outcome.model))
        price, bills_reserved = self._terms_of(tenant, outcome.model) if terms is None else terms
        assert outcome.admitted_s is not None
        charged_utc_s = int(outcome.admitted_s + self._offset_s)
        tokens, nanomoney = billed(usage, work, price, bills_reserved and outcome.outcome == "cancelled")
        _add(self._totals, charged_utc_s, tenant, tokens, nanomoney)
        used = UNKNOWN if usage is None else usage
        return UsageLine(
            tenant,
            outcome.client,
            outcome.model,
            outcome.pool,
            self._policy.price_version,
            outcome.execution,
            charged_utc_s,
            int((outcome.ended_s + self._offset_s) * 1000.0 + 0.5) / 1000.0,
            used.prompt_tokens,
            used.cached_tokens,
            used.output_tokens,
            used.exact,
            work.tokens,
            outcome.outcome,
            outcome.evidence,
            tokens,
            nanomoney,
        )

    def _terms_of(self, tenant: str, model: str) -> tuple[PricePolicy, bool]:
        """The price, and whether what was reserved is billed for what was cancelled."""
        policy = self._policy
        limits = policy.tenants.get(tenant)
        bills_reserved = limits is not None and limits.quota is not None and limits.quota.bill == "reserved"
        if len(self._terms) >= TERMS_MAX:
            self._terms.clear()
        terms = policy.prices.get(model, FREE), bills_reserved
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
        self._file.finish(totals)

    def close(self) -> None:
        """Everything is in the file when this returns, if the disk takes it."""
        self._closing.set()
        self._writer.join()
        self.flush()
        with self._writing:
            if not self._buffer:
                self._file.finish(self._totals)
                self._totals = {}

    def _write_on(self) -> None:
        while not self._closing.wait(self._flush_s):
            self.flush()


class _File:
    """The running file of one process, and those that others have left."""

    def __init__(self, directory: Path, keep_days: int) -> None:
        self._directory = directory
        self._keep_s = keep_days * DAY_S
        self._file: int | None = None
        self._path: Path | None = None
        self._day = ""
        self.failure = ""
        """What the disk said last, empty while it takes everything."""
        directory.mkdir(parents=True, exist_ok=True)

    def is_over(self, utc_s: float) -> bool:
        return self._file is not None and self._day != _day(utc_s)

    def append(self, lines: bytearray, utc_s: float | None) -> int:
        """How many bytes the disk took. A line it took in part is completed by the next call."""
        written = 0
        try:
            if self._file is None and utc_s is not None:
                self._open(utc_s)
            assert self._file is not None
            while written < len(lines):
                written += os.write(self._file, memoryview(lines)[written:])
        except OSError as error:
            self.failure = str(error)
            return written
        self.failure = ""
        return written

    def _open(self, utc_s: float) -> None:
        """A new file; the ones that are too old go."""
        self._day = _day(utc_s)
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(utc_s))
        for number in range(1_000):
            path = self._directory / f"usage-{started}-{os.getpid()}-{number:03d}.jsonl"
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o640)
            except FileExistsError:
                continue
            self._path = path
            break
        oldest = _day(utc_s - self._keep_s)
        for path in self._directory.glob("usage-*"):
            if _day_of(path) < oldest:
                path.unlink(missing_ok=True)

    def finish(self, totals: Billed) -> None:
        """Close the file and keep its totals beside it."""
        if self._file is None or self._path is None:
            return
        file, path = self._file, self._path
        self._file = self._path = None  # first: a number that is closed soon belongs to somebody else
        os.close(file)
        _keep(path, totals)

    def others(self, begins_s: int, utc_s: float) -> Iterator[Billed]:
        """The totals of every other file with something of the time since then: what waited at midnight is in the old one."""
        first = _day(begins_s - DAY_S)
        for path in sorted(self._directory.glob("usage-*.jsonl")):
            if path == self._path or _day_of(path) < first:
                continue
            kept = _totals_path(path)
            known = _kept(kept)
            if known is not None:
                yield known
                continue
            totals = _scanned(path)
            if path.stat().st_mtime < utc_s - SETTLED_S:
                _keep(path, totals)
            yield totals


def _add(totals: Billed, charged_utc_s: int, tenant: str, tokens: int, nanomoney: int) -> None:
    number = charged_utc_s // HOUR_S
    hour = totals.get(number)
    if hour is None:
        hour = totals[number] = {}
    before = hour.get(tenant, (0, 0))
    hour[tenant] = (before[0] + tokens, before[1] + nanomoney)


def _scanned(path: Path) -> Billed:
    """Read line by line. One that a crash cut short is passed over: it was never whole."""
    totals: Billed = {}
    decoder = msgspec.json.Decoder(Bill)
    with path.open("rb") as file:
        for text in file:
            try:
                bill = decoder.decode(text)
            except msgspec.DecodeError:
                continue
            _add(totals, bill.charged_utc_s, bill.tenant, bill.billed_tokens, bill.billed_nanomoney)
    return totals


def _keep(path: Path, totals: Mapping[int, Mapping[str, tuple[int, int]]]) -> None:
    """Whole or not at all. They only save reading the file: a disk that does not take them costs nothing else."""
    kept = _totals_path(path)
    unfinished = kept.with_suffix(".part")
    with contextlib.suppress(OSError):
        unfinished.write_bytes(msgspec.json.encode(totals))
        unfinished.replace(kept)


def _kept(path: Path) -> Billed | None:
    """The totals beside a file; None where there are none, or a power loss left half of them."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Billed)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _totals_path(path: Path) -> Path:
    return path.with_suffix(".totals.json")


def _day(utc_s: float) -> str:
    return time.strftime("%Y%m%d", time.gmtime(utc_s))


def _day_of(path: Path) -> str:
    """The day a file was begun in, from its name."""
    return path.name[6:14]

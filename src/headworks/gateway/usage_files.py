"""The usage journal's files in one directory: one a day for each process, and what stands beside those that are complete (F7).

Beside a file that is complete stands `….totals.json`: what each tenant was billed in each hour, so that a start need not
read a month of lines.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headworks.core.quota import DAY_S, HOUR_S
from headworks.gateway.log_records import Bill

SETTLED_S = 2 * DAY_S
"""A file not written to for so long has no writer any more: its totals may be kept beside it."""
Billed = dict[int, dict[str, tuple[int, int]]]
"""Hour of Unix time → tenant → tokens and billionths of money."""


class File:
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
        return self._file is not None and self._day != day(utc_s)

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
        self._day = day(utc_s)
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(utc_s))
        for number in range(1_000):
            path = self._directory / f"usage-{started}-{os.getpid()}-{number:03d}.jsonl"
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o640)
            except FileExistsError:
                continue
            self._path = path
            break
        oldest = day(utc_s - self._keep_s)
        for path in self._directory.glob("usage-*"):
            if day_of(path) < oldest:
                path.unlink(missing_ok=True)

    def finish(self, totals: Billed) -> None:
        """Close the file and keep its totals beside it."""
        if self._file is None or self._path is None:
            return
        file, path = self._file, self._path
        self._file = self._path = None  # first: a number that is closed soon belongs to somebody else
        os.close(file)
        keep(path, totals)

    def others(self, begins_s: int, utc_s: float) -> Iterator[Billed]:
        """The totals of every other file with something of the time since then: what waited at midnight is in the old one."""
        first = day(begins_s - DAY_S)
        for path in paths(self._directory):
            if path == self._path or day_of(path) < first:
                continue
            known = kept(_totals_path(path))
            if known is not None:
                yield known
                continue
            totals = scanned(path)
            if path.stat().st_mtime < utc_s - SETTLED_S:
                keep(path, totals)
            yield totals


def add(totals: Billed, charged_utc_s: int, tenant: str, tokens: int, nanomoney: int) -> None:
    """One execution more."""
    number = charged_utc_s // HOUR_S
    hour = totals.get(number)
    if hour is None:
        hour = totals[number] = {}
    before = hour.get(tenant, (0, 0))
    hour[tenant] = (before[0] + tokens, before[1] + nanomoney)


def scanned(path: Path) -> Billed:
    """Read line by line. One that a crash cut short is passed over: it was never whole."""
    totals: Billed = {}
    decoder = msgspec.json.Decoder(Bill)
    with path.open("rb") as file:
        for text in file:
            try:
                bill = decoder.decode(text)
            except msgspec.DecodeError:
                continue
            add(totals, bill.charged_utc_s, bill.tenant, bill.billed_tokens, bill.billed_nanomoney)
    return totals


def keep(path: Path, totals: Mapping[int, Mapping[str, tuple[int, int]]]) -> None:
    """Whole or not at all. They only save reading the file: a disk that does not take them costs nothing else."""
    beside = _totals_path(path)
    unfinished = beside.with_suffix(".part")
    with contextlib.suppress(OSError):
        unfinished.write_bytes(msgspec.json.encode(totals))
        unfinished.replace(beside)


def kept(path: Path) -> Billed | None:
    """The totals beside a file; None where there are none, or a power loss left half of them."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Billed)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _totals_path(path: Path) -> Path:
    return path.with_suffix(".totals.json")


def day(utc_s: float) -> str:
    """`20261130`."""
    return time.strftime("%Y%m%d", time.gmtime(utc_s))


def day_of(path: Path) -> str:
    """The day a file was begun in, from its name."""
    return path.name[6:14]


def paths(directory: Path) -> list[Path]:
    """The journal's files, oldest first."""
    return sorted(directory.glob("usage-*.jsonl"))

"""The usage journal: one line for each execution that ended, never twice, and what quotas make of it (F7, A2)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_records import ended

from headworks.core.policy import Policy, PricePolicy, QuotaPolicy, TenantPolicy
from headworks.core.quota import period_of
from headworks.core.types import Usage
from headworks.gateway import usage as module
from headworks.gateway.usage import BUFFER_BYTES_MAX, UsageJournal

WALL_S = 1_796_007_595.0
"""2026-11-30T02:59:55Z."""
OFFSET_S = WALL_S - 10.25
"""Records say 10.25 when they mean that instant."""


class Wall:
    def __init__(self) -> None:
        self.s = WALL_S


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def journal(tmp_path: Path, wall: Wall) -> Iterator[UsageJournal]:
    made = open_journal(tmp_path, wall)
    yield made
    made.close()


def policy(bill: str = "used") -> Policy:
    tenants = {"acme": TenantPolicy("acme", quota=QuotaPolicy("day", tokens=10_000, bill=bill))}
    return Policy("v", 1, {}, tenants, {}, prices={"m": PricePolicy(100.0, 20.0, 400.0)}, price_version="p1")


def open_journal(directory: Path, wall: Wall, bill: str = "used", **settings: Any) -> UsageJournal:
    given: dict[str, Any] = {"flush_s": 3600.0, **settings}
    return UsageJournal(directory / "usage", policy(bill), utc_s=lambda: wall.s, offset_s=OFFSET_S, **given)


def files(directory: Path, pattern: str = "*.jsonl") -> list[Path]:
    return sorted((directory / "usage").glob(pattern))


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in files(directory) for line in path.read_text().splitlines()]


def used(journal: UsageJournal, kind: str = "day", utc_s: float = WALL_S, tenant: str = "acme") -> tuple[int, int]:
    return journal.used({tenant: period_of(kind, utc_s)})[tenant]


def test_F7_an_execution_is_one_line_with_its_evidence_and_its_price(tmp_path: Path, journal: UsageJournal) -> None:
    journal.write(ended("completed", execution="e1", replica="llama/0", usage=Usage(30, 8, 20, 2.5, "stop", True)))
    journal.flush()
    (line,) = lines(tmp_path)
    assert line == {
        "ended_utc_s": 1_796_007_597.5,
        "execution": "e1",
        "tenant": "acme",
        "client": "acme/1",
        "model": "m",
        "pool": "llama",
        "replica": "llama/0",
        "sent_utc_s": 1_796_007_595.0,
        "sequences": 2,
        "prompt_tokens": 30,
        "cached_tokens": 8,
        "output_tokens": 20,
        "exact": True,
        "reserved_tokens": 100,
        "end": "completed",
        "evidence": "E1",
        "billed_tokens": 50,
        "billed_nanomoney": 22 * 100_000 + 8 * 20_000 + 20 * 400_000,
        "price_version": "p1",
        "charged_utc_s": 1_796_007_595,
    }


def test_F7_what_did_not_run_is_no_line(tmp_path: Path, journal: UsageJournal) -> None:
    journal.write(ended("refused", admitted_s=None, evidence="", usage=None))
    journal.write(ended("failed", evidence="E0", usage=None))
    journal.write(ended("replayed", evidence=""))
    journal.flush()
    assert files(tmp_path) == []


@pytest.mark.parametrize(("bill", "tokens"), [("used", 50), ("reserved", 100)])
def test_A2_cancelled_work_is_billed_as_the_quota_says(tmp_path: Path, wall: Wall, bill: str, tokens: int) -> None:
    journal = open_journal(tmp_path, wall, bill)
    journal.write(ended("cancelled", evidence="E3a"))
    journal.write(ended("completed"))
    assert used(journal)[0] == tokens + 50
    journal.close()


def test_A2_what_others_wrote_can_be_read_before_and_is_read_again_after_midnight(tmp_path: Path, wall: Wall) -> None:
    killed = open_journal(tmp_path, wall)
    killed.write(ended("completed"))
    killed.flush()
    journal = open_journal(tmp_path, wall)
    month = {"acme": period_of("month", WALL_S - 86_400)}  # the last of November will be yesterday
    before = journal.others(month)
    journal.write(ended("completed"))
    for path in files(tmp_path):
        path.rename(path.with_suffix(".aside"))
    assert journal.used(month, before)["acme"][0] == 100, "no file was looked at, and its own lines are of this moment"
    for path in files(tmp_path, "*.aside"):
        path.rename(path.with_suffix(".jsonl"))
    journal.flush()
    wall.s += 86_400
    journal.flush()
    assert journal.used(month, before)["acme"][0] == 100, "its own lines are in a finished file now"
    journal.close()


def test_A2_what_was_used_is_known_after_a_restart_and_after_a_kill(tmp_path: Path, wall: Wall) -> None:
    first = open_journal(tmp_path, wall)
    first.write(ended("completed"))
    first.close()
    assert len(files(tmp_path, "*.totals.json")) == 1
    killed = open_journal(tmp_path, wall)
    killed.write(ended("completed"))
    killed.flush()  # and never closed: no totals beside it
    files(tmp_path)[-1].open("ab").write(b'{"utc":"2026-11-30T03:')  # cut short by a crash
    again = open_journal(tmp_path, wall)
    again.write(ended("completed"))
    assert used(again) == (150, 3 * (22 * 100_000 + 8 * 20_000 + 20 * 400_000))
    assert used(again, tenant="batchco") == (0, 0)
    killed.close()
    again.close()


def test_A2_an_execution_counts_in_the_period_in_which_it_was_admitted(tmp_path: Path, wall: Wall) -> None:
    journal = open_journal(tmp_path, wall)
    journal.write(ended("completed", admitted_s=10.25 - 3_600.0))
    journal.write(ended("completed", admitted_s=10.25 - 4 * 3_600.0, usage=Usage(1, 0, 1, 0.0, "stop", True)))
    assert used(journal, "hour") == (0, 0)
    assert used(journal, "hour", WALL_S - 3_600.0)[0] == 50
    assert used(journal, "day")[0] == 50
    assert used(journal, "month")[0] == 52
    journal.close()


def test_F7_a_day_is_a_file_and_its_totals_stand_beside_it(tmp_path: Path, wall: Wall) -> None:
    journal = open_journal(tmp_path, wall)
    journal.write(ended("completed"))
    journal.flush()
    journal.write(ended("completed"))
    wall.s += 86_400.0
    journal.flush()
    journal.write(ended("completed", admitted_s=10.25 + 86_400.0))
    journal.flush()
    assert [path.name[:14] for path in files(tmp_path)] == ["usage-20261130", "usage-20261201"]
    assert [len(path.read_text().splitlines()) for path in files(tmp_path)] == [2, 1]
    (totals,) = files(tmp_path, "*.totals.json")
    assert json.loads(totals.read_bytes()) == {str(1_796_007_595 // 3600): {"acme": [100, 2 * 10_360_000]}}
    assert used(journal)[0] == 100
    assert used(journal, utc_s=wall.s)[0] == 50
    journal.close()


def test_F7_files_that_are_too_old_go(tmp_path: Path, wall: Wall) -> None:
    journal = open_journal(tmp_path, wall, keep_days=2)
    for _ in range(4):
        journal.flush()
        journal.write(ended("completed"))
        journal.flush()
        wall.s += 86_400.0
    journal.close()
    assert [path.name[:14] for path in files(tmp_path)] == ["usage-20261201", "usage-20261202", "usage-20261203"]


def test_F7_the_thread_hands_lines_over_without_being_asked(tmp_path: Path, wall: Wall) -> None:
    journal = open_journal(tmp_path, wall, flush_s=0.01)
    journal.write(ended("completed"))
    until_s = time.monotonic() + 5
    while not files(tmp_path) or not lines(tmp_path):
        assert time.monotonic() < until_s
    journal.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
def test_F7_a_full_disk_is_tried_again_and_no_line_is_lost_or_doubled(tmp_path: Path, wall: Wall) -> None:
    heard: list[str] = []
    journal = open_journal(tmp_path, wall, on_failure=heard.append)
    journal.write(ended("completed", execution="e1"))
    journal.flush()
    file = journal._file._file
    assert file is not None
    journal._file._file = os.open("/dev/full", os.O_WRONLY)
    for name in ("e2", "e3"):
        journal.write(ended("completed", execution=name))
        journal.flush()
    assert len(heard) == 1 and "No space left" in heard[0], "said once"
    os.close(journal._file._file)
    journal._file._file = file
    journal.close()
    assert [line["execution"] for line in lines(tmp_path)] == ["e1", "e2", "e3"]
    assert used(open_journal(tmp_path, wall))[0] == 150


def test_F7_a_line_the_disk_took_in_part_is_completed(tmp_path: Path, wall: Wall) -> None:
    journal = open_journal(tmp_path, wall)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)  # takes what fits and then refuses, as a disk that fills up
    journal._file._file, journal._file._day = writing, "20261130"
    for number in range(1_000):
        journal.write(ended("completed", execution=f"e{number}"))
    taken = b""
    for _ in range(100):
        journal.flush()
        if not journal._buffer:
            break
        taken += os.read(reading, 1 << 20)
    taken += os.read(reading, 1 << 20)
    assert [json.loads(line)["execution"] for line in taken.splitlines()] == [f"e{number}" for number in range(1_000)]
    journal.close()
    os.close(reading)
    os.close(writing)


def test_F7_what_waits_for_a_disk_is_bounded_and_what_is_dropped_is_counted(
    tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUFFER_BYTES_MAX == 16 * 1024 * 1024
    monkeypatch.setattr(module, "BUFFER_BYTES_MAX", 1_024)
    journal = open_journal(tmp_path, wall)
    for _ in range(10):
        journal.write(ended("completed"))
    assert journal.dropped == 7
    journal.close()
    assert len(lines(tmp_path)) == 3
    assert used(journal)[0] == 150


def test_F7_totals_the_disk_does_not_take_cost_nothing_but_time(tmp_path: Path, wall: Wall) -> None:
    """What cannot be written beside an old file neither stops the journal nor leaves it a descriptor that is closed."""
    journal = open_journal(tmp_path, wall)
    journal.write(ended("completed", execution="e1"))
    journal.flush()
    (first,) = files(tmp_path)
    first.with_suffix(".totals.part").mkdir()  # where its totals would be written
    wall.s += 86_400
    journal.flush()
    journal.write(ended("completed", execution="e2", admitted_s=86_500.0))
    journal.close()
    assert [line["execution"] for line in lines(tmp_path)] == ["e1", "e2"]
    assert not first.with_suffix(".totals.json").exists()


@pytest.mark.parametrize("left", [b"", b'{"1":'])
def test_A2_totals_that_a_power_loss_cut_are_read_from_their_file(tmp_path: Path, wall: Wall, left: bytes) -> None:
    journal = open_journal(tmp_path, wall)
    journal.write(ended("completed", execution="e1"))
    journal.close()
    before = used(open_journal(tmp_path, wall))
    (totals,) = files(tmp_path, "*.totals.json")
    totals.write_bytes(left)
    again = open_journal(tmp_path, wall)
    assert used(again) == before != (0, 0)
    again.close()

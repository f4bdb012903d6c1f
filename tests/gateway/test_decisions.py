"""The decision log: what is written, when it is on disk, how long it stays (F2)."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_records import decided, ended

from headworks.core.effects import Outcome
from headworks.core.policy import Policy
from headworks.core.types import Decision, Verdict
from headworks.gateway.accounts import WAITING_MAX, Accounts, Records
from headworks.gateway.clock import UtcStamp
from headworks.gateway.decisions import BUFFER_BYTES_MAX, DecisionLog
from headworks.gateway.metrics import Registry
from headworks.gateway.usage import UsageJournal
from headworks.logs import reading

WALL_S = 1_764_460_799.123456


class Clock:
    def __init__(self) -> None:
        self.wall_s = WALL_S
        self.s = 812.5


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[DecisionLog]:
    made = open_log(tmp_path, clock)
    yield made
    made.close()


def open_log(directory: Path, clock: Clock, **settings: Any) -> DecisionLog:
    return DecisionLog(directory / "decisions", clock_s=lambda: clock.s, wall_s=lambda: clock.wall_s, **settings)


def lines(directory: Path) -> list[dict[str, Any]]:
    paths = sorted((directory / "decisions").iterdir())
    return [line for path in paths for line in reading.lines(path)]


def named(record: Decision, name: str) -> Decision:
    record.id = name
    return record


def test_F2_a_decision_is_one_line_with_both_clocks(tmp_path: Path, log: DecisionLog) -> None:
    verdict = Verdict("tenant", "tenant:acme", 17_000, 15_000, "tokens", False, "tenant_capacity_exceeded")
    decision = decided("queue", "tenant_capacity_exceeded", verdict, wait_s=float("inf"))
    decision.decided_s = 812.5
    log.write(decision)
    log.flush()
    (line,) = lines(tmp_path)
    assert (line["kind"], line["utc"], line["monotonic_s"]) == ("decision", "2025-11-29T23:59:59.123456Z", 812.5)
    record = line["record"]
    assert (record["id"], record["key"], record["policy_version"]) == ("d", ["acme", "k"], "v")
    assert record["verdicts"][0]["limit"] == 15_000
    assert record["forecast"]["wait_s"] is None


def test_F2_every_field_of_a_decision_is_logged_under_its_name(tmp_path: Path, log: DecisionLog) -> None:
    verdict = Verdict("time", "pool:llama", 4.5, 1.0, "s", False, "queue_delay_exceeded")
    decision = decided("refuse", "queue_delay_exceeded", verdict, wait_s=4.5, position=2)
    log.write(decision)
    log.flush()
    logged = lines(tmp_path)[0]["record"]
    expected = dataclasses.asdict(decision) | {"key": ["acme", "k"], "verdicts": [verdict._asdict()]}
    del expected["rows"]  # what the verdicts are made of
    assert logged == expected


def test_F2_an_outcome_is_a_line_too(tmp_path: Path, log: DecisionLog) -> None:
    log.write(ended("completed"))
    log.flush()
    (line,) = lines(tmp_path)
    assert (line["kind"], line["record"]["usage"]["output_tokens"]) == ("outcome", 20)


def test_F2_records_reach_the_disk_without_being_asked(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, flush_s=0.01)
    log.write(decided("admit"))
    end_s = time.monotonic() + 10.0
    while not lines(tmp_path) and time.monotonic() < end_s:
        time.sleep(0.005)
    assert len(lines(tmp_path)) == 1
    log.close()


def test_F2_closing_writes_everything(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, flush_s=60.0)
    for number in range(1_000):
        log.write(named(decided("admit"), f"d{number}"))
    log.close()
    assert [line["record"]["id"] for line in lines(tmp_path)] == [f"d{number}" for number in range(1_000)]


def test_F2_files_rotate_by_size(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, rotate_bytes=2_000, flush_s=60.0)
    for number in range(20):
        log.write(named(decided("admit"), f"d{number}"))
        log.flush()
    log.close()
    sizes = [path.stat().st_size for path in sorted((tmp_path / "decisions").iterdir())]
    assert len(sizes) > 3
    assert max(sizes) < 3_000
    assert [line["record"]["id"] for line in lines(tmp_path)] == [f"d{number}" for number in range(20)]


def test_F2_files_expire_by_age(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, keep_days=30)
    log.write(decided("admit"))
    log.close()
    (path,) = (tmp_path / "decisions").iterdir()
    os.utime(path, (WALL_S, WALL_S))
    clock.wall_s = WALL_S + 29 * 86_400
    open_log(tmp_path, clock, keep_days=30).close()
    assert path.exists()
    clock.wall_s = WALL_S + 31 * 86_400
    open_log(tmp_path, clock, keep_days=30).close()
    assert not path.exists()


def test_F2_a_record_is_found_by_id_key_or_execution(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, rotate_bytes=1, flush_s=60.0)
    for number in range(5):
        log.write(named(decided("queue"), f"d{number}"))
        log.flush()
    log.write(ended("completed", id="d3", execution="e3"))
    assert [(line["kind"], line["record"]["id"]) for line in log.find("d3")] == [("decision", "d3"), ("outcome", "d3")]
    assert [line["kind"] for line in log.find("e3")] == ["outcome"]
    assert len(log.find("k")) == 6
    assert log.find("d") == []
    assert log.find("interactive") == []  # it stands in every line, and names none
    log.close()


def test_F2_half_a_line_from_a_crash_is_passed_over(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock)
    log.write(named(decided("admit"), "d1"))
    log.close()
    (path,) = (tmp_path / "decisions").iterdir()
    head, _, form, line = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + line[:100] + b"\n" + form + line + line[:50])
    assert [line["record"]["id"] for line in open_log(tmp_path, clock).find("d1")] == ["d1"]


def test_F2_a_disk_that_refuses_is_counted_and_costs_no_request(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, flush_s=60.0)
    directory = tmp_path / "decisions"
    directory.rmdir()
    directory.write_text("no directory any more")
    log.write(decided("admit"))
    log.flush()
    assert log.dropped == 1
    assert log.failure
    directory.unlink()
    directory.mkdir()
    log.write(decided("admit"))
    log.close()
    assert len(lines(tmp_path)) == 1
    assert log.failure == ""


FULL_DISK = """
import pathlib, resource, sys
from headworks.gateway.decisions import DecisionLog
from gateway_records import decided

def take(size_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

here = pathlib.Path(sys.argv[1])
log = DecisionLog(here, clock_s=lambda: 0.0, wall_s=lambda: 0.0, flush_s=60.0)
log.write(decided("admit"))
log.flush()
(whole,) = here.iterdir()
take(whole.stat().st_size + 50)
log.write(decided("admit"))
log.flush()
assert log.dropped == 1 and "large" in log.failure, log.failure
take(150)
for number in range(5):
    log.write(decided("admit"))
    log.flush()
assert log.dropped == 6, log.dropped
take(resource.RLIM_INFINITY)
log.write(decided("queue"))
log.close()
"""


def test_F2_after_a_full_disk_the_log_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    subprocess.run(command, check=True, timeout=30, env=os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])})
    cut, whole = (path.read_text() for path in sorted(tmp_path.iterdir()))  # and none of what found no room for its head
    assert not cut.endswith("\n") and len(cut.splitlines()[-1]) == 50
    assert json.loads(whole.splitlines()[-1])[7] == "queue"


def test_F2_two_that_are_the_same_process_in_the_same_second_have_files_of_their_own(tmp_path: Path, clock: Clock) -> None:
    logs = [open_log(tmp_path, clock, flush_s=60.0) for _ in range(2)]
    for log, name in zip(logs, ("one", "two"), strict=True):
        log.write(named(decided("admit"), name))
        log.flush()
        assert (log.dropped, log.failure) == (0, "")
    for log in logs:
        log.close()
    assert [line["record"]["id"] for line in lines(tmp_path)] == ["one", "two"]


def test_F2_who_looks_while_lines_are_written_leaves_them_in_their_order(tmp_path: Path, clock: Clock) -> None:
    """A line that came before its form would be lost to whoever reads the file from its beginning."""
    log = open_log(tmp_path, clock, flush_s=60.0)
    log.write(named(decided("admit"), "first"))
    log.flush()
    append, is_asked, is_over = log._files.append, threading.Event(), threading.Event()

    def slow(lines: bytes) -> bool:
        if not is_asked.is_set():
            is_asked.set()
            is_over.wait(0.3)  # until whoever looks has written as well, if that is let
        return append(lines)

    log._files.append = slow  # type: ignore[method-assign]
    log.write(named(decided("refuse", "queue_delay_exceeded"), "second"))
    writer = threading.Thread(target=log.flush)
    writer.start()
    assert is_asked.wait(5)
    log.write(named(decided("refuse", "queue_delay_exceeded"), "third"))
    log.flush()
    is_over.set()
    writer.join()
    log.close()
    assert [line["record"]["id"] for line in lines(tmp_path)] == ["first", "second", "third"]


def test_F2_records_that_wait_are_bounded(tmp_path: Path, clock: Clock) -> None:
    log = open_log(tmp_path, clock, flush_s=60.0)
    record = decided("admit", "", *[Verdict("tenant", "tenant:acme" * 100, 1, 2, "tokens", True, "")] * 100)
    while not log.dropped:
        log.write(record)
    assert 0 < log._encoded_bytes <= BUFFER_BYTES_MAX
    log.close()


def test_F2_records_are_counted_and_logged(tmp_path: Path, log: DecisionLog) -> None:
    records = Records(Accounts(Registry(list)), log)
    written: list[Decision | Outcome] = [decided("admit"), ended("completed")]
    for record in written:
        records.record(record)
    log.flush()
    assert [line["kind"] for line in lines(tmp_path)] == ["decision", "outcome"]


def test_F2_what_is_counted_is_made_lines_of_at_once(tmp_path: Path, log: DecisionLog) -> None:
    """All of it is looked at while the processor has it at hand; the disk gets it later."""
    made, policy = Registry(list), Policy("v", 1, {}, {}, {})
    journal = UsageJournal(tmp_path / "usage", policy, utc_s=lambda: WALL_S, offset_s=WALL_S, flush_s=60.0)
    records = Records(Accounts(made), log, journal)
    for _ in range(WAITING_MAX // 2 - 1):
        records.record(decided("admit"))
        records.record(ended("completed"))
    records.record(decided("admit"))
    assert (len(log._waiting), log._encoded_bytes, len(journal._buffer)) == (WAITING_MAX - 1, 0, 0)
    records.record(ended("completed"))
    assert (len(log._waiting), len(journal._ended)) == (0, 0)
    assert log._encoded_bytes > 100 * WAITING_MAX
    assert journal._buffer.count(b"\n") == WAITING_MAX // 2
    journal.close()


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1_764_460_799.5, "2025-11-29T23:59:59.500000Z"),
        (1_764_460_800.25, "2025-11-30T00:00:00.250000Z"),
    ],
)
def test_F2_utc_is_written_with_microseconds(wall_s: float, text: str) -> None:
    stamp = UtcStamp()
    stamp.text(wall_s - 0.5)
    assert stamp.text(wall_s) == text

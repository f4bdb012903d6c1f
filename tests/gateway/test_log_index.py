"""The index beside the decision log: it finds what a scan finds, and nothing is lost with it (F2)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from gateway_records import decided, ended

from headworks.core.types import RequestKey
from headworks.gateway import log_index
from headworks.gateway.decisions import DecisionLog, find, paths

SEED = 11


def written(directory: Path, count: int, *, from_number: int = 0) -> None:
    """Decisions and outcomes of many requests, some of them under one key, some with a client's own name."""
    log = DecisionLog(directory, clock_s=lambda: 1.0, wall_s=lambda: 1_795_996_800.0, rotate_bytes=20_000)
    for number in range(from_number, from_number + count):
        key = RequestKey("acme", f"k{number // 3}")
        decision = decided("admit")
        decision.id, decision.key = f"r{number}", key
        log.write(decision)
        log.write(ended("completed", id=f"r{number}", key=key, execution=f"e{number}"))
        if number % 5 == 0:
            log.name(f"r{number}", key, f"own-{number}")
        if number % 20 == 0:
            log.flush()
    log.close()


def everything(directory: Path, names: list[str]) -> list[list[dict[str, Any]]]:
    return [find(directory, name) for name in names]


def test_F2_the_index_finds_what_a_scan_finds(tmp_path: Path) -> None:
    """Replay with another seed: change SEED."""
    written(tmp_path, 200)
    assert len(paths(tmp_path)) > 3
    random = Random(SEED)
    drawn = [random.randrange(220) for _ in range(40)]
    names = [f"{kind}{number}" for number in drawn for kind in ("r", "k", "e", "own-")]
    scanned = everything(tmp_path, names)
    assert sum(map(len, scanned)) > 150
    for path in paths(tmp_path):
        log_index.make(path)
        assert log_index.look_up(path, "")[1] == path.stat().st_size
    assert everything(tmp_path, names) == scanned


def test_F2_with_an_index_nothing_is_scanned(tmp_path: Path) -> None:
    written(tmp_path, 30)
    (last,) = paths(tmp_path)[-1:]
    found = find(tmp_path, "r29")
    for path in paths(tmp_path):
        log_index.make(path)
    offsets, _ = log_index.look_up(last, "r29")
    assert len(offsets) == len(found) == 2
    lines = last.read_bytes()
    assert all(offset == 0 or lines[offset - 1 : offset] == b"\n" for offset in offsets)


def test_F2_what_came_after_the_index_is_found_as_well(tmp_path: Path) -> None:
    written(tmp_path, 10)
    (path,) = paths(tmp_path)
    log_index.make(path)
    covered_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(path.read_bytes().replace(b'"r3"', b'"r1003"'))
        file.write(b'{"kind":"decision","rec')  # a line that a crash cut
    assert log_index.look_up(path, "r1003") == ([], covered_bytes)
    assert len(find(tmp_path, "r1003")) == 2
    log_index.make(path)
    assert len(log_index.look_up(path, "r1003")[0]) == 2
    assert len(find(tmp_path, "r1003")) == 2


@pytest.mark.parametrize("content", [b"", b"HWINDEX1", b"garbage" * 10, log_index.HEAD.pack(b"HWINDEX1", 10**9, 5)])
def test_F2_a_broken_index_is_no_index(content: bytes, tmp_path: Path) -> None:
    written(tmp_path, 5)
    (path,) = paths(tmp_path)
    log_index.index_of(path).write_bytes(content)
    assert log_index.look_up(path, "r3") == ([], 0)
    assert len(find(tmp_path, "r3")) == 2


def test_F2_small_and_covered_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 20)
    log_index.main(tmp_path)
    assert list(tmp_path.glob("*.index")) == []
    monkeypatch.setattr(log_index, "UNCOVERED_BYTES_MIN", 1_000)
    log_index.main(tmp_path)
    assert [log_index.index_of(path).exists() for path in paths(tmp_path)] == [True] * len(paths(tmp_path))


def test_F2_an_index_a_full_disk_did_not_take_leaves_nothing_behind(tmp_path: Path) -> None:
    written(tmp_path, 10)
    (log,) = sorted(tmp_path.glob("*.jsonl"))
    index = log_index.index_of(log)
    index.mkdir()  # so that it cannot be put in its place
    with pytest.raises(OSError):
        log_index.make(log)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([log.name, index.name])

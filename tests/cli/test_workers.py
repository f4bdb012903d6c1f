"""`serve --workers N`: which deaths end the others, and which do not. The workers are processes of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headworks.cli import workers

Capture = pytest.CaptureFixture[str]
WITHIN_S = 20.0
SERVES = """
import pathlib, signal, sys
signal.alarm(120)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path({path!r}).open("a").write("x")
while True:
    signal.pause()
"""
KILLED_ONCE = """
import os, pathlib, sys
lives = pathlib.Path({path!r})
is_first = not lives.exists()
lives.open("a").write("x")
os.kill(os.getpid(), 9) if is_first else sys.exit(2)
"""


def serving(path: Path) -> str:
    """A worker that serves until it is told to end. Each of its lives writes a letter into the file."""
    return SERVES.format(path=str(path))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WITHIN_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


def begun(path: Path, times: int = 1) -> bool:
    return path.exists() and len(path.read_text()) >= times


def started(monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    monkeypatch.setattr(workers, "command", lambda given, number: (sys.executable, "-S", "-c", programs[number - 1]))
    monkeypatch.setattr(workers, "AGAIN_S", (0.05,))


def test_H4_a_worker_that_dies_later_ends_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Its second life cannot start, as where the store is just away: with the very status that ends a first start."""
    first, second = tmp_path / "1", tmp_path / "2"
    started(monkeypatch, KILLED_ONCE.format(path=str(first)), serving(second))

    async def steps() -> None:
        supervised = asyncio.create_task(workers.supervise([], 2))
        await until(lambda: begun(second) and begun(first, 3))
        assert second.read_text() == "x", "the other one was never started again"
        assert not supervised.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await supervised

    asyncio.run(steps())
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        "headworks: worker 1 ended with -9 and is started again in 0.05 s",
        "headworks: worker 1 ended with 2 and is started again in 0.05 s",
    ]


def test_H4_a_worker_that_cannot_start_at_all_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, "import sys; sys.exit(2)", serving(tmp_path / "2"))
    assert asyncio.run(asyncio.wait_for(workers.supervise([], 2), WITHIN_S)) == 2


def test_H4_who_served_for_long_and_then_ends_as_one_that_could_not_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    monkeypatch.setattr(workers, "SETTLED_S", 0.0)
    dies = f"import pathlib, sys\npathlib.Path({str(first)!r}).open('a').write('x')\nsys.exit(2)"
    started(monkeypatch, dies, serving(second))

    async def steps() -> None:
        supervised = asyncio.create_task(workers.supervise([], 2))
        await until(lambda: begun(second) and begun(first, 2))
        assert not supervised.done() and second.read_text() == "x"
        os.kill(os.getpid(), signal.SIGTERM)
        await supervised

    asyncio.run(steps())


def test_H4_a_worker_that_the_system_cannot_start_ends_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    started(monkeypatch, serving(first), serving(second))
    real, refused = asyncio.create_subprocess_exec, []

    async def start(*words: str) -> asyncio.subprocess.Process:
        if begun(first) and str(first) in words[-1] and not refused:
            refused.append(words)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await real(*words)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)

    async def steps() -> int:
        supervisor = workers._Supervisor([])
        supervised = asyncio.create_task(supervisor.run(2))
        await until(lambda: begun(first) and begun(second))
        supervisor._processes[1].kill()
        await until(lambda: begun(first, 2))
        assert second.read_text() == "x"
        os.kill(os.getpid(), signal.SIGTERM)
        return await supervised

    assert asyncio.run(steps()) == 0
    assert "headworks: worker 1 cannot be started: Resource temporarily unavailable" in capsys.readouterr().err


def test_H4_a_worker_that_ended_in_this_very_turn_keeps_no_other_from_being_told() -> None:
    class Gone:
        def send_signal(self, number: int) -> None:
            raise ProcessLookupError

    told: list[int] = []

    class Here:
        def send_signal(self, number: int) -> None:
            told.append(number)

    supervisor = workers._Supervisor([])
    supervisor._processes = {1: Gone(), 2: Here()}  # type: ignore[dict-item]
    supervisor._end()
    assert told == [signal.SIGTERM]

"""Who enters an engine when and who leaves it, of a whole period, in order, without holding them (F7).

Lines of a journal are in the order in which executions ended, each gateway's in files of its own; what is needed is the
order in which they began and ended, for each engine. So they are put down, sorted by so many, and merged: what is in memory
is one such run, and of each finished one a block.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from heapq import merge
from typing import IO

RUN_MAX = 200_000
"""Moves that are sorted at a time: about 25 MB."""
BLOCK_MOVES = 2_048
"""What is read of a finished run at a time."""
FORM = struct.Struct("<HqBQIIB")
PRICED, LEFT, ENTERED = range(3)
"""In this order at one instant: whoever ends does so before others begin."""
Move = tuple[int, int, int, int, int, int, int]
"""Engine, millisecond, what, execution, its sequences, the row that it counts for, and whether nobody got its answer."""


class Moves:
    """A context: what it put on the disk is gone when it is left."""

    def __init__(self, run_max: int = RUN_MAX) -> None:
        self._run_max = run_max
        self._run: list[Move] = []
        self._runs: list[IO[bytes]] = []

    def __enter__(self) -> Moves:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._runs:
            file.close()

    def add(self, move: Move) -> None:
        """One more, in any order."""
        self._run.append(move)
        if len(self._run) >= self._run_max:
            self._put_down()

    def _put_down(self) -> None:
        self._run.sort()
        file = tempfile.TemporaryFile(prefix="headworks-cost-")  # noqa: SIM115 (closed when this is left)
        self._runs.append(file)
        for start in range(0, len(self._run), BLOCK_MOVES):
            file.write(b"".join([FORM.pack(*move) for move in self._run[start : start + BLOCK_MOVES]]))
        self._run = []

    def in_order(self) -> Iterator[Move]:
        """All of them, engine by engine, each engine's by time."""
        self._run.sort()
        return merge(self._run, *(_read(file) for file in self._runs))


def _read(file: IO[bytes]) -> Iterator[Move]:
    file.seek(0)
    while block := file.read(BLOCK_MOVES * FORM.size):
        yield from FORM.iter_unpack(block)

"""The decision log's files in one directory: they begin, fill, rotate, expire, and are indexed (F2).

Each file begins with the log's *head*: what every line of it depends on (`log_facts.py`), so that a file can be understood
when those before it have expired.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headworks.gateway import log_index

DAY_S = 86_400.0


class Files:
    """The log's files in one directory: `decisions-<UTC>-<number>.jsonl`, so that names sort by time."""

    def __init__(
        self, directory: Path, wall_s: Callable[[], float], rotate_bytes: int, keep_days: float, head: Callable[[], bytes]
    ) -> None:
        self._directory = directory
        self._head = head
        self._wall_s = wall_s
        self._rotate_bytes = rotate_bytes
        self._keep_s = keep_days * DAY_S
        self._lock = threading.Lock()
        self._file: int | None = None
        self._size_bytes = 0
        self._number = 0
        self.failure = ""
        self._indexing: log_index.Making | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._expire()

    def append(self, lines: bytes) -> bool:
        """Write whole lines. False: the disk did not take them, and says why in `failure`."""
        with self._lock:
            try:
                if self._file is None or self._size_bytes >= self._rotate_bytes:
                    self._rotate()
                self._put(lines)
            except OSError as error:
                self.failure = str(error)
                self._close()  # it may end in half a line; what comes next starts a file of its own
                return False
            self.failure = ""
            return True

    def _put(self, lines: bytes) -> None:
        assert self._file is not None
        rest = memoryview(lines)
        while rest:
            written = os.write(self._file, rest)
            rest = rest[written:]
            self._size_bytes += written

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rotate(self) -> None:
        """A new file; the ones that are too old go."""
        self._close()
        path = self._begin()
        try:
            self._put(self._head())
        except OSError:  # a disk that stays full would have a file, and some of a head, for each attempt
            path.unlink(missing_ok=True)
            raise
        self._expire()
        self._index()

    def _begin(self) -> Path:
        """A name of our own: where each gateway has a container to itself, all may be the first process of theirs."""
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall_s()))
        while self._file is None:
            self._number += 1
            path = self._directory / f"decisions-{started}-{os.getpid()}-{self._number:06d}.jsonl"
            with contextlib.suppress(FileExistsError):
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever deletes from it would take what comes after
        self._size_bytes = 0
        return path

    def _index(self) -> None:
        """One process of ours at a time makes what indexes are missing."""
        if self._indexing is not None and self._indexing.poll() is None:
            return
        if sum(seen.st_size for _, seen in self._files()) >= log_index.UNCOVERED_BYTES_MIN:
            self._indexing = log_index.begin(self._directory)

    def _expire(self) -> None:
        oldest_s = self._wall_s() - self._keep_s
        for path, seen in self._files():
            if seen.st_mtime < oldest_s:
                path.unlink(missing_ok=True)
                log_index.index_of(path).unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Those that are there: another gateway of this directory may take one away at any moment."""
        for path in paths(self._directory):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


def paths(directory: Path) -> list[Path]:
    """The files of a log, oldest first. Several gateways may write into one directory."""
    return sorted(directory.glob("decisions-*.jsonl"))

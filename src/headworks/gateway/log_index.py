"""An index beside each full file of the decision log, so that one request is found among ten million at once (F2).

    decisions-….jsonl     lines, as they were decided
    decisions-….index     a head, the sorted hashes of all names in them, and where each one's line begins

Making one takes the processor for seconds, so no gateway does it: it starts this module as a process of its own
whenever it begins a new file, with the lowest priority. An index says how much of its file it covers. What came later, and
a file without one, is scanned: the index is only ever an economy, and deleting it costs nothing but time.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

MAGIC = b"HWINDEX1"
HEAD = struct.Struct("<8sQQ")
"""Magic, bytes of the file that are covered, entries."""
WORD_BYTES = 8
OFFSET_BITS = 40
"""A file is never longer than a tebibyte, or only its beginning is indexed."""
ENTRIES_MAX = 8_000_000
"""Of one index: what its making takes of memory is bounded by it."""
UNCOVERED_BYTES_MIN = 16 * 1024 * 1024
"""Less than that is not worth a new index: it is scanned in a moment."""
RECORD = b'"record":{'
OBJECT = re.compile(rb'"record":\{"id":"([^"\\]+)","key":\["[^"\\]*","([^"\\]+)"\](?:,"(?:execution|request_id)":"([^"\\]+)")?')
"""A record begins with its names, in this order: those that clients gave, and all that were written before arrays were."""
ARRAY = re.compile(rb'\["(?:decision|outcome|turned_away)",(?:\d+|{.*?}),"([^"\\]+)",(?:null|"([^"\\]+)")(?:,"([^"\\]+)")?')
"""Kind, form, id, key, and of an outcome the execution (`logs/fields.py`)."""
FORM = re.compile(rb'{"kind":"form",.*?"record":{"number":(\d+)')
LOWEST_PRIORITY = 19
Making = subprocess.Popen[bytes]


def begin(directory: Path) -> Making:
    """Index what can be indexed in this directory, in a process of its own. Nobody waits for it."""
    command = [sys.executable, "-P", "-m", "headworks.gateway.log_index", str(directory)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603


def index_of(path: Path) -> Path:
    """Where the index of a file is."""
    return path.with_suffix(".index")


def look_up(path: Path, name: str) -> tuple[list[int], int]:
    """Where lines begin that may hold the name, and up to where the index knows: 0 where there is none."""
    try:
        with index_of(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as index:
            if len(index) < HEAD.size:
                return [], 0
            magic, covered_bytes, count = HEAD.unpack(index[: HEAD.size])
            if magic != MAGIC or len(index) != HEAD.size + 2 * WORD_BYTES * count:  # cut off by a full disk
                return [], 0
            return _offsets(index, count, _hash(name.encode())), covered_bytes
    except (OSError, ValueError):  # not there, or empty
        return [], 0


def _offsets(index: mmap.mmap, count: int, wanted: int) -> list[int]:
    """A hash may stand for several names, and a name for several lines."""
    found = []
    with memoryview(index) as whole, whole[HEAD.size :] as tail, tail.cast("Q") as words:
        at = bisect_left(words, wanted, 0, count)
        while at < count and words[at] == wanted:
            found.append(words[count + at])
            at += 1
    return sorted(set(found))


def make(path: Path) -> None:
    """Index a file as far as it has been written, in whole lines. A reader sees the old index or the new one."""
    read = path.stat().st_ino
    entries, covered_bytes = _entries(path)
    entries.sort()
    low = (1 << OFFSET_BITS) - 1
    hashes = array("Q", (entry >> OFFSET_BITS for entry in entries))
    offsets = array("Q", (entry & low for entry in entries))
    made = path.with_suffix(f".index-{os.getpid()}")
    try:
        with made.open("wb") as file:
            file.write(HEAD.pack(MAGIC, covered_bytes, len(entries)))
            file.write(hashes.tobytes())
            file.write(offsets.tobytes())
        if path.stat().st_ino == read:  # else it was written anew meanwhile (`log_delete.py`): its lines begin elsewhere
            made.replace(index_of(path))
    finally:
        made.unlink(missing_ok=True)  # what a full disk took of it


def _entries(path: Path) -> tuple[list[int], int]:
    """Hash and place of every name, in one number each."""
    entries: list[int] = []
    at = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or len(entries) >= ENTRIES_MAX or at >> OFFSET_BITS:
                break
            for name in _names(line):
                entries.append(_hash(name) << OFFSET_BITS | at)
            at += len(line)
    return entries, at


def _names(line: bytes) -> Iterable[bytes]:
    if line.startswith(b'{"kind":"form"'):
        form = FORM.match(line)
        return () if form is None else (b"form " + form[1],)
    found = ARRAY.match(line) if line.startswith(b"[") else OBJECT.match(line, line.find(RECORD))
    # Where no key was given, the id stands for it.
    return {name for name in found.groups() if name} if found is not None else ()


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=WORD_BYTES).digest(), "little")


def main(directory: Path) -> None:
    """Index every file that has grown by enough since its last index, or has none."""
    for path in sorted(directory.glob("decisions-*.jsonl")):
        _, covered_bytes = look_up(path, "")
        if path.stat().st_size - covered_bytes >= UNCOVERED_BYTES_MIN:
            make(path)


if __name__ == "__main__":
    os.nice(LOWEST_PRIORITY)
    main(Path(sys.argv[1]))

"""The decision log: one JSON line for each decision and each outcome, in files that rotate and expire (F2).

What stands in a line is said by `logs/fields.py`. Records wait for one another and are encoded together, on the loop, in one
call; a thread of its own takes what was encoded every `FLUSH_S`, with what waits, and does the file work, so a slow disk costs
no request anything. Should the disk not keep up, what waits for it is bounded: what does not fit is dropped and counted, never
waited for. A prompt cannot get in here: decisions and outcomes hold none.

    ["decision",3,"req_9605…",null,1796063454113177,68067366940240,…]
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headworks.core.effects import Outcome, TurnedAway
from headworks.core.types import Decision, RequestKey
from headworks.gateway import log_index
from headworks.gateway.clock import UtcStamp
from headworks.gateway.log_delete import Deleted, delete
from headworks.gateway.log_facts import Fact
from headworks.gateway.log_files import Files, paths
from headworks.gateway.log_forms import Forms
from headworks.gateway.log_records import CopyRecord, Line, NameRecord
from headworks.logs.fields import FIELDS, FORM, NAMES, OTHERWISE
from headworks.logs.reading import Meaning, parsed

FLUSH_S = 0.5
BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Records that wait for the disk."""
WAITING_MAX = 128
"""Records that are encoded in one go, in a quarter of a millisecond. Where they are counted too it is half as many."""
FIELDS_TOLD = {kind: {"names": names, "otherwise": OTHERWISE[kind]} for kind, names in NAMES.items()}
FORM_LINE = b'{"kind":"form"'
SCAN_BYTES = 1024 * 1024
LINE_BYTES_MAX = 65_536
FOUND_MAX = 1_000
"""Records one look-up returns at most."""


class Noted(NamedTuple):
    """A fact, or a client's own name for its request, on its way to being a line."""

    kind: str
    at_s: float
    record: Fact | NameRecord | CopyRecord


class DecisionLog:
    """The files of one gateway. Only it writes to them; `find` reads them at any time."""

    def __init__(
        self,
        directory: Path,
        *,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
        rotate_bytes: int = 268_435_456,
        keep_days: float = 30.0,
        flush_s: float = FLUSH_S,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """`on_failure` hears once what a disk says that takes nothing any more."""
        self._on_failure = on_failure
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._stamp = UtcStamp()
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._forms = Forms()
        self._waiting: list[Decision | Outcome | TurnedAway | Noted] = []
        """Records that are not encoded yet. Put down without the lock, so they are only ever added behind the others."""
        self._encoded: list[bytes] = []
        self._encoded_bytes = 0
        """Lines that wait for the disk."""
        self._lock = threading.Lock()
        """Held while lines are encoded or taken, never for file work."""
        self._writing = threading.Lock()
        """Held from taking lines until they are written: a line stands behind the form that it refers to."""
        self._flush_s = flush_s
        self.directory = directory
        self._head: dict[str, bytes] = {FIELDS: self._head_line(FIELDS, FIELDS_TOLD)}
        """Lines that each file begins with, by their name: what its fields are called first."""
        self._files = Files(directory, wall_s, rotate_bytes, keep_days, self._heads)
        self._closing = threading.Event()
        self.dropped = 0
        """Records that did not fit, because the disk was too slow or refused."""
        self._writer = threading.Thread(target=self._write_on, name="decision-log", daemon=True)
        self._writer.start()

    def write(self, record: Decision | Outcome | TurnedAway | Noted) -> None:
        """Put a record down. It is in the file within `FLUSH_S`, or when the log is closed."""
        self._waiting.append(record)
        if len(self._waiting) >= WAITING_MAX:
            self.encode()

    def encode(self) -> None:
        """What waits becomes lines now; they wait for the disk."""
        with self._lock:
            self._encode_waiting()

    def fact(self, kind: str, record: Fact, head: str = "", at_s: float | None = None) -> None:
        """Put down what decisions depend on. `head`: under this name it stands at the beginning of each further file too.

        `at_s`: the instant at which the gate is told of it; None: now.
        """
        monotonic_s = self._clock_s() if at_s is None else at_s
        self._waiting.append(Noted(kind, monotonic_s, record))
        if head:
            line = self._head_line(kind, record, monotonic_s)
            with self._lock:
                self._head[head] = line

    def name(self, request: str, key: RequestKey, request_id: str) -> None:
        """Put down what a client calls its request."""
        self.write(Noted("name", self._clock_s(), NameRecord(request, key, request_id)))

    def copy(self, record: CopyRecord) -> None:
        """Put down which copy is whose."""
        self.write(Noted("copy", self._clock_s(), record))

    def _head_line(self, kind: str, record: object, monotonic_s: float | None = None) -> bytes:
        at_s = self._clock_s() if monotonic_s is None else monotonic_s
        return msgspec.json.encode(Line(kind, UtcStamp().text(self._wall_s()), at_s, record)) + b"\n"

    def _heads(self) -> bytes:
        with self._lock:
            return b"".join(self._head.values())

    def _encode_waiting(self) -> None:
        """As lines, all of them where there is room for them. The caller holds the lock."""
        count = len(self._waiting)
        records = self._waiting[:count]
        del self._waiting[:count]
        if not records:
            return
        ahead_s = self._wall_s() - self._clock_s()
        forms = self._forms
        lines: list[object] = []
        for record in records:
            if isinstance(record, Decision):
                lines.append(forms.decision(record, ahead_s))
            elif isinstance(record, Outcome):
                lines.append(forms.outcome(record, ahead_s))
            elif isinstance(record, TurnedAway):
                lines.append(forms.turned_away(record, ahead_s))
            else:
                lines.append(Line(record.kind, self._stamp.text(record.at_s + ahead_s), record.at_s, record.record))
        self._write_forms()
        encoded = self._encode_lines(lines)
        if self._encoded_bytes + len(encoded) > BUFFER_BYTES_MAX:
            self.dropped += len(lines)
            return
        self._encoded.append(encoded)
        self._encoded_bytes += len(encoded)

    def _write_forms(self) -> None:
        """Before the lines that refer to them, and whether there is room for those or not: later ones do so as well."""
        made, self._forms.made = self._forms.made, []
        for form in made:
            line = self._head[f"{FORM} {form['number']}"] = self._head_line(FORM, form)
            self._encoded.append(line)
            self._encoded_bytes += len(line)

    @property
    def failure(self) -> str:
        """What the disk said last, empty while it takes everything."""
        return self._files.failure

    def find(self, name: str, tenant: str | None = None) -> list[dict[str, Any]]:
        """Every record with this name (id, key, execution, client's own), oldest first; of one tenant, if one is named."""
        self.flush()
        return find(self.directory, name, tenant)

    def delete(self, tenant: str) -> Deleted:
        """Take a tenant out of all that was written up to now. Reads and writes every file, so not on the loop."""
        self.flush()
        with self._lock:
            for number in self._forms.forget(tenant):
                self._head.pop(f"{FORM} {number}", None)
        self._files.close()  # what comes next begins another
        return delete(self.directory, tenant)

    def flush(self) -> None:
        """Into the file now."""
        with self._writing:
            with self._lock:
                self._encode_waiting()
                encoded, self._encoded, self._encoded_bytes = self._encoded, [], 0
            failure, full = self._files.failure, b"".join(encoded)
            if full and not self._files.append(full):
                self.dropped += full.count(b"\n") - full.count(FORM_LINE)
                if self._on_failure is not None and not failure:
                    self._on_failure(self._files.failure)

    def close(self) -> None:
        """Everything written is in the file when this returns."""
        self._closing.set()
        self._writer.join()
        self.flush()
        self._files.close()

    def _write_on(self) -> None:
        while not self._closing.wait(self._flush_s):
            self.flush()


def find(directory: Path, name: str, tenant: str | None = None) -> list[dict[str, Any]]:
    """Look at the lines that hold the name, the newest files first: no gateway is needed for that."""
    found: list[dict[str, Any]] = []
    needle = msgspec.json.encode(name)
    for path in reversed(paths(directory)):
        offsets, covered_bytes = log_index.look_up(path, name)
        written = chain(_lines_at(path, offsets), _lines_with(path, needle, covered_bytes))
        newest = deque((line for line in _told(path, written) if _names(line["record"], name, tenant)), maxlen=FOUND_MAX)
        found = [*newest, *found]
        if len(found) >= FOUND_MAX:
            break
    return found[-FOUND_MAX:]


def _told(path: Path, written: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Lines of a file as objects. Its fields and the forms they refer to are looked up once there is a line that needs them."""
    meaning: Meaning | None = None
    for given in written:
        if meaning is None:
            meaning = Meaning()
            for head in _lines_at(path, [0]):
                meaning.lines(head)
        if meaning.lacks(given):
            offsets, covered_bytes = log_index.look_up(path, f"{FORM} {given[1]}")
            for form in _lines_at(path, offsets) if offsets else _lines_with(path, FORM_LINE, covered_bytes):
                meaning.lines(form)
            meaning.forms.setdefault(given[1], None)  # it was lost: nobody looks for it again
        yield from meaning.lines(given)


def _lines_at(path: Path, offsets: list[int]) -> Iterator[Any]:
    """The parsed lines that begin at these places."""
    if offsets:
        with path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                line = parsed(file.readline())
                if line is not None:
                    yield line


def _lines_with(path: Path, needle: bytes, from_bytes: int) -> Iterator[Any]:
    """The parsed lines after a place that contain the needle, in order. A line that was cut by a crash is passed over."""
    with path.open("rb") as file:
        file.seek(from_bytes)
        rest = b""
        while block := file.read(SCAN_BYTES):
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:][-LINE_BYTES_MAX:]
            at = block.find(needle, 0, end)
            while at >= 0:
                start = block.rfind(b"\n", 0, at) + 1
                stop = block.find(b"\n", at)
                line = parsed(block[start:stop])
                if line is not None:
                    yield line
                at = block.find(needle, stop, end)


def _names(record: dict[str, Any], name: str, tenant: str | None) -> bool:
    if "key" not in record:  # a fact, about no request
        return False
    owner, key = record["key"]
    return name in (record["id"], record.get("execution"), key, record.get("request_id")) and tenant in (None, owner)

"""The decision log: one JSON line for each decision and each outcome, in files that rotate and expire (F2).

Records wait for one another and are encoded together, on the loop, in one call; a thread of its own takes what was encoded
every `FLUSH_S`, with what waits, and does the file work, so a slow disk costs no request anything. Should the disk not
keep up, what waits for it is bounded: what does not fit is dropped and counted, never waited for. A prompt cannot get in
here: decisions and outcomes hold none.

    {"kind":"decision","utc":"2026-11-29T23:59:59.123456Z","monotonic_s":812.5,"record":{"id":…}}
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headworks.core.effects import Outcome
from headworks.core.types import Decision, Forecast, Request, RequestKey, Usage, Work
from headworks.gateway import log_index
from headworks.gateway.clock import UtcStamp
from headworks.gateway.log_facts import Asked, Fact
from headworks.gateway.log_files import Files, paths
from headworks.gateway.log_records import (
    DecisionRecord,
    ForecastRecord,
    Line,
    NameRecord,
    OutcomeRecord,
    UsageRecord,
    WorkRecord,
)
from headworks.gateway.verdicts import shown_rows

FLUSH_S = 0.5
BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Records that wait for the disk."""
WAITING_MAX = 64
"""Records that are encoded in one go, in about a third of a millisecond."""
SCAN_BYTES = 1024 * 1024
LINE_BYTES_MAX = 65_536
FOUND_MAX = 1_000
"""Records one look-up returns at most."""


class Noted(NamedTuple):
    """A fact on its way to being a line."""

    kind: str
    record: Fact


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
        self._waiting: deque[tuple[float, Decision | Outcome | NameRecord | Noted]] = deque()
        """Records that are not encoded yet, and when they were written."""
        self._encoded: list[bytes] = []
        self._encoded_bytes = 0
        """Lines that wait for the disk."""
        self._lock = threading.Lock()
        """Held while lines are encoded or taken, never for file work."""
        self._flush_s = flush_s
        self._directory = directory
        self._head: dict[str, bytes] = {}
        """Facts that each file begins with, by their name."""
        self._files = Files(directory, wall_s, rotate_bytes, keep_days, self._heads)
        self._closing = threading.Event()
        self.dropped = 0
        """Records that did not fit, because the disk was too slow or refused."""
        self._writer = threading.Thread(target=self._write_on, name="decision-log", daemon=True)
        self._writer.start()

    def write(self, record: Decision | Outcome | NameRecord) -> None:
        """Put a record down. It is in the file within `FLUSH_S`, or when the log is closed."""
        waiting = self._waiting
        waiting.append((self._clock_s(), record))
        if len(waiting) >= WAITING_MAX:
            with self._lock:
                self._encode_waiting()

    def fact(self, kind: str, record: Fact, head: str = "", at_s: float | None = None) -> None:
        """Put down what decisions depend on. `head`: under this name it stands at the beginning of each further file too.

        `at_s`: the instant at which the gate is told of it; None: now.
        """
        monotonic_s = self._clock_s() if at_s is None else at_s
        self._waiting.append((monotonic_s, Noted(kind, record)))
        if head:
            line = Line(kind, UtcStamp().text(self._wall_s()), monotonic_s, record)
            with self._lock:
                self._head[head] = msgspec.json.encode(line) + b"\n"

    def _heads(self) -> bytes:
        with self._lock:
            return b"".join(self._head.values())

    def _encode_waiting(self) -> None:
        """As lines, all of them where there is room for them. The caller holds the lock."""
        if not self._waiting:
            return
        ahead_s = self._wall_s() - self._clock_s()
        lines: list[Line] = []
        while self._waiting:
            monotonic_s, record = self._waiting.popleft()
            utc = self._stamp.text(monotonic_s + ahead_s)
            if isinstance(record, Decision):
                lines.append(Line("decision", utc, monotonic_s, _logged_decision(record)))
            elif isinstance(record, Outcome):
                lines.append(Line("outcome", utc, monotonic_s, _logged_outcome(record)))
            elif isinstance(record, NameRecord):
                lines.append(Line("name", utc, monotonic_s, record))
            else:
                lines.append(Line(record.kind, utc, monotonic_s, record.record))
        encoded = self._encode_lines(lines)
        if self._encoded_bytes + len(encoded) > BUFFER_BYTES_MAX:
            self.dropped += len(lines)
            return
        self._encoded.append(encoded)
        self._encoded_bytes += len(encoded)

    def name(self, request: str, key: RequestKey, request_id: str) -> None:
        """Put down what a client calls its request."""
        self.write(NameRecord(request, key, request_id))

    @property
    def failure(self) -> str:
        """What the disk said last, empty while it takes everything."""
        return self._files.failure

    def find(self, name: str, tenant: str | None = None) -> list[dict[str, Any]]:
        """Every record with this name (id, key, execution, client's own), oldest first; of one tenant, if one is named."""
        self.flush()
        return find(self._directory, name, tenant)

    def flush(self) -> None:
        """Into the file now."""
        with self._lock:
            self._encode_waiting()
            encoded, self._encoded, self._encoded_bytes = self._encoded, [], 0
        failure, full = self._files.failure, b"".join(encoded)
        if full and not self._files.append(full):
            self.dropped += full.count(b"\n")
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
        lines = chain(_lines_at(path, offsets), _lines_with(path, needle, covered_bytes))
        newest = deque((line for line in lines if _names(line["record"], name, tenant)), maxlen=FOUND_MAX)
        found = [*newest, *found]
        if len(found) >= FOUND_MAX:
            break
    return found[-FOUND_MAX:]


def _logged_decision(decision: Decision) -> DecisionRecord:
    return DecisionRecord(
        decision.id,
        decision.key,
        decision.outcome,
        decision.reason,
        shown_rows(decision.rows),
        _logged_forecast(decision.forecast),
        _logged_work(decision.work),
        decision.retry_after_s,
        decision.position,
        decision.degraded,
        decision.decided_s,
        decision.waited_s,
        decision.gateway,
        decision.policy_version,
        decision.service_class,
        decision.model,
        decision.pool,
        decision.at_arrival,
    )


def _logged_forecast(forecast: Forecast) -> ForecastRecord:
    return ForecastRecord(
        forecast.wait_s,
        forecast.prefill_s,
        forecast.ttft_s,
        forecast.total_s,
        forecast.drain_tokens_per_s,
        forecast.buffer_ratio,
        forecast.basis,
        forecast.wait_most_s,
        forecast.tpot_s,
        forecast.drain_error_ratio,
        forecast.wait_spread_s,
    )


def _logged_work(work: Work) -> WorkRecord:
    return WorkRecord(
        work.tokens,
        work.prefill_tokens,
        work.sequences,
        work.engine_s,
        work.kv_tokens,
        work.output_tokens,
        work.basis,
        work.output_tokens_max,
        work.bound_tokens,
    )


def _logged_usage(usage: Usage | None) -> UsageRecord | None:
    if usage is None:
        return None
    return UsageRecord(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, usage.engine_s, usage.end, usage.exact)


def _logged_outcome(outcome: Outcome) -> OutcomeRecord:
    return OutcomeRecord(
        outcome.id,
        outcome.key,
        outcome.execution,
        outcome.outcome,
        outcome.reason,
        outcome.service_class,
        outcome.model,
        outcome.pool,
        outcome.client,
        outcome.retry,
        outcome.arrived_s,
        outcome.admitted_s,
        outcome.sent_s,
        outcome.first_byte_s,
        outcome.ended_s,
        _logged_work(outcome.work),
        _logged_usage(outcome.usage),
        outcome.evidence,
        outcome.unconfirmed_s,
        outcome.in_slo,
        outcome.predicted_ttft_s,
        outcome.grown_tokens,
        outcome.growths,
        outcome.growths_refused,
        outcome.retry_kind,
        outcome.predicted_total_s,
        outcome.replica,
        _asked(outcome.request),
        outcome.marks,
        outcome.told_s,
    )


def _asked(request: Request | None) -> Asked | None:
    """What a client asked for, in numbers."""
    if request is None:
        return None
    return (
        request.prompt_bytes,
        request.prompt_tokens,
        request.output_tokens_max,
        request.output_tokens_min,
        request.samples,
        request.stream,
        request.assembles,
        request.key_given,
        request.retry_count,
        request.start_by_s - request.arrived_s,
        request.finish_by_s - request.arrived_s,
        request.prompt_kind,
        request.route,
    )


def _lines_at(path: Path, offsets: list[int]) -> Iterator[dict[str, Any]]:
    """The parsed lines that begin at these places."""
    if offsets:
        with path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                line = _parsed(file.readline())
                if line is not None:
                    yield line


def _lines_with(path: Path, needle: bytes, from_bytes: int) -> Iterator[dict[str, Any]]:
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
                line = _parsed(block[start:stop])
                if line is not None:
                    yield line
                at = block.find(needle, stop, end)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _names(record: dict[str, Any], name: str, tenant: str | None) -> bool:
    if "key" not in record:  # a fact, about no request
        return False
    owner, key = record["key"]
    return name in (record["id"], record.get("execution"), key, record.get("request_id")) and tenant in (None, owner)

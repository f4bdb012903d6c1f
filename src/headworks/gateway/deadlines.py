"""How long a request may take: its class's budget, and what its client says it will wait for (E3).

`Headworks-Deadline` is decimal seconds from receipt to the end of the answer. `x-stainless-read-timeout` is what stock
SDKs send of their own accord: the longest silence they bear, so it bounds the first token of a stream and the whole of
an answer that comes in one piece. The shortest holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headworks.core.policy import ClassPolicy
from headworks.gateway.dialects.fields import Fault

DEADLINE = b"headworks-deadline"
READ_TIMEOUT = b"x-stainless-read-timeout"
SECONDS_MAX = 1e7
"""Larger numbers are no time-outs but mistakes of unit."""
_DECIMAL = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(slots=True)
class Deadlines:
    """Instants on the gateway's monotonic clock; infinite where nobody set one."""

    start_by_s: float
    """The client's own limit on the first token. The class's promise and wait are the gate's business."""
    finish_by_s: float


def stamp(headers: Mapping[bytes, bytes], service_class: ClassPolicy, stream: bool, arrived_s: float) -> Deadlines | Fault:
    """The two instants, or what is wrong with a header."""
    patience_s = finish_s = math.inf
    if DEADLINE in headers:
        text = headers[DEADLINE].strip()
        finish_s = float(text) if _DECIMAL.fullmatch(text) else 0.0
        if not 0.0 < finish_s <= SECONDS_MAX:
            return Fault("invalid_request", "Headworks-Deadline must be decimal seconds above 0.", "Headworks-Deadline")
    if READ_TIMEOUT in headers:
        read_s = _read_timeout_s(headers[READ_TIMEOUT])
        if read_s is None:
            return Fault("invalid_request", "x-stainless-read-timeout must be seconds above 0.", "x-stainless-read-timeout")
        patience_s = read_s
        if not stream:
            finish_s = min(finish_s, read_s)
    return Deadlines(
        start_by_s=arrived_s + min(patience_s, finish_s),
        finish_by_s=arrived_s + min(service_class.gateway_s, finish_s),
    )


def _read_timeout_s(text: bytes) -> float | None:
    """An SDK writes its own number: `600`, `2.5`, `1e-05`, or `inf` for none."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if seconds > 0.0 else None

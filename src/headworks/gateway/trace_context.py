"""The trace a request belongs to, by its W3C headers `traceparent` and `tracestate` (F1; www.w3.org/TR/trace-context-1).

What is not as the standard has it is dropped whole: a `traceparent` that cannot be read takes its `tracestate` with it, and the
request begins a trace of its own, where any are made, or goes on without. A `tracestate` that cannot be read is dropped alone.

    where no traces are exported     both are passed on to the engine as they came
    where they are                   the engine gets our own span as its parent, and the trace's id and sampling as they came
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
LENGTH = 55
"""Of version 00; later versions may say more after a further dash."""
NO_TRACE, NO_SPAN, NO_VERSION = b"0" * 32, b"0" * 16, b"ff"
SAMPLED = 1
STATE_BYTES_MAX = 512
"""So much has to be passed on; what is longer is dropped whole."""
MEMBERS_MAX = 32
_KEY = rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
MEMBER = re.compile(_KEY + rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


@dataclass(slots=True)
class TraceContext:
    """Where a request stands in its trace."""

    trace_id: bytes
    """32 hexadecimal digits."""
    parent_id: bytes
    """16, of the span that its client made for it; empty: it has none."""
    flags: int
    state: bytes
    """`tracestate`, empty: none."""

    @property
    def is_sampled(self) -> bool:
        """Its client has it recorded."""
        return bool(self.flags & SAMPLED)

    def lines(self, span_id: bytes = b"") -> bytes:
        """Header lines for whoever is asked next. `span_id`: of the span that asks; without one, the client's."""
        parent = b"traceparent: 00-%b-%b-%02x\r\n" % (self.trace_id, span_id or self.parent_id, self.flags)
        return parent + b"tracestate: %b\r\n" % self.state if self.state else parent


def read(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """The context a request came with; None: none that can be read."""
    given = headers.get(TRACEPARENT, b"").strip()
    found = PARENT.match(given)
    if found is None:
        return None
    version, trace_id, parent_id, flags = found.groups()
    if version == NO_VERSION or trace_id == NO_TRACE or parent_id == NO_SPAN:
        return None
    if len(given) > LENGTH and (version == b"00" or given[LENGTH : LENGTH + 1] != b"-"):
        return None
    return TraceContext(trace_id, parent_id, int(flags, 16) & SAMPLED, _state(headers.get(TRACESTATE, b"")))


def _state(given: bytes) -> bytes:
    """What of `tracestate` is passed on: all of it, or nothing."""
    members = [member.strip(b" \t") for member in given.split(b",")]
    members = [member for member in members if member]
    state = b",".join(members)
    keys = [member.partition(b"=")[0] for member in members]
    whole = len(state) <= STATE_BYTES_MAX and len(members) <= MEMBERS_MAX and len(set(keys)) == len(keys)
    return state if whole and all(MEMBER.fullmatch(member) for member in members) else b""

"""Lines of the decision log that are objects, and lines of the usage journal as they are read.

These types are in a module of their own: what is compiled (decision 24) can use such types and cannot make them.
"""

from __future__ import annotations

import msgspec

from headworks.core.types import RequestKey


class NameRecord(msgspec.Struct, gc=False):
    """A client's own name for a request, its `X-Request-Id`: written only where it gave one."""

    id: str
    key: RequestKey
    request_id: str


class CopyRecord(msgspec.Struct, gc=False):
    """A request was chosen to be copied to a second pool (`mirrors.py`)."""

    id: str
    key: RequestKey
    copy: str
    """The copy's own id; empty where none was made."""
    pool: str
    left_out: str
    """Why none was made."""


class Line(msgspec.Struct, gc=False):
    """One line of the log."""

    kind: str
    utc: str
    monotonic_s: float
    record: object
    """A fact (`log_facts.py`), a name, or what says how other lines are to be read."""


class UsageLine(msgspec.Struct, gc=False):
    """A line of the usage journal (`usage.py`)."""

    tenant: str
    client: str
    model: str
    pool: str
    replica: str
    price_version: str
    execution: str
    charged_utc_s: int
    sent_utc_s: float
    ended_utc_s: float
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    exact: bool
    reserved_tokens: int
    end: str
    evidence: str
    billed_tokens: int
    billed_nanomoney: int
    paid_nanomoney: int | msgspec.UnsetType = msgspec.UNSET
    """What was paid for it elsewhere, where it was bought by the token."""


class Bill(msgspec.Struct, gc=False):
    """What the totals need of a line of the usage journal."""

    tenant: str
    billed_tokens: int
    billed_nanomoney: int
    charged_utc_s: int

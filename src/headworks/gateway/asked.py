"""Small things a request says of itself in its head, taken with care."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headworks.gateway.every_answer import Ids

REQUEST_ID = b"x-request-id"
RETRY_COUNT = b"x-stainless-retry-count"
ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
"""What a client may call its request; anything else is replaced by an id of ours."""


def ids_of(headers: Mapping[bytes, bytes], own_id: str) -> Ids:
    """The client's own names where they are fit to be repeated, else ours."""
    own = own_id.encode()
    request_id, key = headers.get(REQUEST_ID), headers.get(b"idempotency-key")
    return Ids(
        own if request_id is None or ID.fullmatch(request_id) is None else request_id,
        own if key is None or ID.fullmatch(key) is None else key,
    )


def class_refused(headers: Mapping[bytes, bytes]) -> str:
    """What is said to a client whose class is not to be had."""
    wanted = headers.get(b"headworks-class")
    if wanted is None:
        return "This key may use no class that its tenant still has."
    return f"This key may not use the class {wanted.decode('latin-1')[:64]!r}."


def retries(text: bytes) -> int:
    """How often an SDK says it has tried before."""
    return int(text) if text.isdigit() and len(text) < 4 else 0

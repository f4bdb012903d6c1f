"""The least that each route beside chat needs, and what becomes of it with something more."""

from __future__ import annotations

import json
from typing import Any

from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.fields import Fault
from headworks.gateway.dialects.table import DIALECTS

LIMITS = Limits(context_tokens=4_096, samples_max=16)
TALK = [{"role": "user", "content": "hello"}]
NEEDED: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "m", "input": "hello"},
    "/v1/messages": {"model": "m", "messages": TALK, "max_tokens": 50},
    "/v1/messages/count_tokens": {"model": "m", "messages": TALK},
    "/v1/embeddings": {"model": "m", "input": "hello"},
    "/tokenize": {"model": "m", "prompt": "hello"},
    "/detokenize": {"model": "m", "tokens": [1, 2]},
}


def parsed(path: str, **fields: Any) -> Parsed | Fault:
    return DIALECTS[path].parse(json.dumps(NEEDED[path] | fields).encode(), LIMITS)


def asked(path: str, **fields: Any) -> Parsed:
    found = parsed(path, **fields)
    assert isinstance(found, Parsed), found
    return found


def refused(path: str, **fields: Any) -> Fault:
    fault = parsed(path, **fields)
    assert isinstance(fault, Fault), fields
    return fault


def sent(path: str, **fields: Any) -> Any:
    return json.loads(asked(path, **fields).build(9, None))

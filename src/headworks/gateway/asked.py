"""Small things a request says of itself in its head, taken with care."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headworks.core.policy import ClassPolicy, Policy
from headworks.core.types import RequestKey
from headworks.gateway.error_shapes import OPENAI
from headworks.gateway.every_answer import Ids
from headworks.gateway.keys import BEARER, Identity

REQUEST_ID = b"x-request-id"
RETRY_COUNT = b"x-stainless-retry-count"
ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
"""What a client may call its request; anything else is replaced by an id of ours."""


class Asker:
    """Who asks, and for which class: found once for a head that a connection repeats, until keys are made known again.

    A reload makes them known again whatever it changes, so `keys_number` stands for the policy as well.
    """

    __slots__ = ("identity", "keys_number", "service_class")

    def __init__(self, identity: Identity, service_class: ClassPolicy, keys_number: int) -> None:
        self.identity = identity
        self.service_class = service_class
        self.keys_number = keys_number


def key_of(tenant: str, name: str) -> RequestKey:
    """A named tuple by way of the tuple it is: its own constructor is Python's, and costs two thousand instructions."""
    return tuple.__new__(RequestKey, (tenant, name))


def ids_of(headers: dict[bytes, bytes], own_id: str, shape: str = OPENAI) -> Ids:
    """The client's own names where they are fit to be repeated, else ours."""
    own = own_id.encode()
    request_id, key = headers.get(REQUEST_ID), headers.get(b"idempotency-key")
    return Ids(
        own if request_id is None or ID.fullmatch(request_id) is None else request_id,
        own if key is None or ID.fullmatch(key) is None else key,
        shape,
    )


def credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key a request came with, as an `Authorization` header has it. Anthropic's clients have one of their own for it."""
    authorization = headers.get(b"authorization")
    if authorization is not None:
        return authorization
    key = headers.get(b"x-api-key")
    return None if key is None else BEARER + key


def class_asked(headers: Mapping[bytes, bytes], identity: Identity, policy: Policy) -> ClassPolicy | None:
    """The class the request names, if its tenant and its key may, or the one it means by naming none (K43)."""
    tenant, scope = policy.tenants[identity.tenant], identity.classes
    wanted = headers.get(b"headworks-class")
    if wanted is not None:
        name = wanted.decode("latin-1")
    elif scope is None or tenant.service_class in scope:
        return policy.classes[tenant.service_class]
    else:
        name = next((name for name in scope if name in tenant.classes), "")
    allowed = name in tenant.classes and (scope is None or name in scope)
    return policy.classes.get(name) if allowed else None


def class_refused(headers: Mapping[bytes, bytes]) -> str:
    """What is said to a client whose class is not to be had."""
    wanted = headers.get(b"headworks-class")
    if wanted is None:
        return "This key may use no class that its tenant still has."
    return f"This key may not use the class {wanted.decode('latin-1')[:64]!r}."


def retries(text: bytes) -> int:
    """How often an SDK says it has tried before."""
    return int(text) if text.isdigit() and len(text) < 4 else 0

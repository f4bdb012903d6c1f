"""Who is asking: API keys to tenant, client and scopes (H2).

A key is kept only as its HMAC-SHA-256 under a pepper and looked up by it, so no secret is compared character by
character; a key that is not known costs the same comparison. Failures are counted per address in a bounded table:
beyond a few a minute they are answered with 429 and no work. A good key passes all the same, since its address may be
shared. Identity comes from here alone: no header names a tenant (K43).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest, digest

BEARER = b"bearer "
KEY_BYTES_MAX = 512
"""No key of ours is longer; a longer one is not even hashed."""
ADDRESSES_MAX = 10_000
"""Addresses with failures that are remembered; beyond, the one heard from least recently is forgotten."""
FAILURES_MAX = 20
WINDOW_S = 60.0
"""`FAILURES_MAX` failures fill up, and drain evenly over `WINDOW_S`."""
_NOBODY = bytes(32)
_MISS: tuple[bytes, None] = (_NOBODY, None)
"""What a key that is not known is compared with."""


@dataclass(slots=True)
class Identity:
    """Who a key belongs to."""

    tenant: str
    client: str
    scopes: tuple[str, ...] = ()


@dataclass(slots=True)
class Key:
    """One key of the configuration. The secret goes no further than `Keys`."""

    secret: str
    identity: Identity


@dataclass(slots=True)
class Denied:
    """Why nobody is known by that key: `invalid_api_key`, or `rate_limit_exceeded` with the time until the next try."""

    reason: str
    retry_after_s: float | None = None


class Keys:
    """All keys. With `anonymous` set everybody is that identity, and no key is looked at."""

    def __init__(self, pepper: bytes, keys: Iterable[Key], anonymous: Identity | None = None) -> None:
        self._pepper = pepper
        self._anonymous = anonymous
        hashed = [(self._hash(key.secret.encode()), key.identity) for key in keys]
        self._known = {name: (name, identity) for name, identity in hashed}
        self._failures = Failures()

    def identify(self, authorization: bytes | None, address: str, now_s: float) -> Identity | Denied:
        """The identity behind an `Authorization` header."""
        if self._anonymous is not None:
            return self._anonymous
        secret = _secret(authorization)
        hashed = self._hash(secret) if secret else _NOBODY
        known, identity = self._known.get(hashed, _MISS)
        if compare_digest(known, hashed) and identity is not None:
            return identity
        wait_s = self._failures.failed(address, now_s)
        return Denied("invalid_api_key") if wait_s is None else Denied("rate_limit_exceeded", wait_s)

    def _hash(self, secret: bytes) -> bytes:
        return digest(self._pepper, secret, "sha256")


def _secret(authorization: bytes | None) -> bytes:
    """The key in a header, empty where there is none of a sensible form."""
    if authorization is None or len(authorization) > KEY_BYTES_MAX or authorization[:7].lower() != BEARER:
        return b""
    return authorization[7:].strip()


class Failures:
    """A leaky bucket of failures for each address."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._levels)

    def failed(self, address: str, now_s: float) -> float | None:
        """One more failure. None while there is room; else how long until there is some."""
        level, at_s = self._levels.pop(address, (0.0, now_s))
        level = max(0.0, level - (now_s - at_s) * FAILURES_MAX / WINDOW_S)
        if len(self._levels) >= ADDRESSES_MAX:
            del self._levels[next(iter(self._levels))]
        full = level + 1 > FAILURES_MAX
        self._levels[address] = (level if full else level + 1, now_s)
        return (level + 1 - FAILURES_MAX) * WINDOW_S / FAILURES_MAX if full else None

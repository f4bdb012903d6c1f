"""Who is asking: API keys to tenant, client and scopes (H2).

A key is kept only as its HMAC-SHA-256 under a pepper and looked up by it, so no secret is compared character by
character; a key that is not known costs the same comparison. Keys of tenants and keys of the admin port are two tables:
neither opens what the other does. Failures are counted per address in a bounded table:
beyond a few a minute they are answered with 429 and no work. A good key passes all the same, since its address may be
shared. Identity comes from here alone: no header names a tenant (K43).

An HMAC costs as much as reading the whole request. A header that was good is therefore known again by another keyed
hash, BLAKE2b, at a sixth of that; again nothing is compared but hashes whose key nobody outside has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest, digest

BEARER = b"Bearer "
KEY_BYTES_MAX = 512
"""No key of ours is longer; a longer one is not even hashed."""
HEADERS_MAX = 4_096
"""Good headers that are known again at once."""
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
    """Who a key belongs to, and what of its tenant's it may use. None: all of it."""

    tenant: str
    client: str
    classes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None


@dataclass(slots=True)
class Key:
    """One key of the configuration. The secret goes no further than `Keys`."""

    secret: str
    identity: Identity


@dataclass(slots=True)
class HashedKey:
    """One stored key, as its HMAC under the pepper of all."""

    hash: bytes
    identity: Identity


@dataclass(slots=True)
class Denied:
    """Why nobody is known by that key: `invalid_api_key`, or `rate_limit_exceeded` with the time until the next try.

    `ledger_unavailable`: the stored keys cannot be read, and it may be one of them.
    """

    reason: str
    retry_after_s: float | None = None


class Keys:
    """All keys. With `anonymous` set everybody is that identity, and no key is looked at."""

    def __init__(self, pepper: bytes, keys: Iterable[Key] = (), anonymous: Identity | None = None) -> None:
        self._failures = Failures()
        self.number = 0
        """How often keys were made known: what was found by them holds while it is the same."""
        self._headers: dict[bytes, Identity] = {}
        """By their keyed hash, those that were good."""
        self.change(pepper, keys, anonymous=anonymous)

    def change(
        self,
        pepper: bytes,
        keys: Iterable[Key],
        stored: Iterable[HashedKey] = (),
        admins: Mapping[bytes, str] | None = None,
        anonymous: Identity | None = None,
        *,
        is_unsure: bool = False,
    ) -> None:
        """These keys, and no other, from now on. What failed before stays counted. `admins`: names of admin keys, by hash.

        `is_unsure`: there may be others that cannot be read now.
        """
        self.number += 1
        self._pepper = pepper
        self._prefix = self._hash(b"")
        """What makes the hash of a header a keyed one: BLAKE2b needs no more, and a key of its own would double its cost."""
        self._anonymous = anonymous
        self._is_unsure = is_unsure
        hashed = [(self._hash(key.secret.encode()), key.identity) for key in keys]
        hashed += [(key.hash, key.identity) for key in stored]
        self._known = {name: (name, identity) for name, identity in hashed}
        self._admins = {hashed: (hashed, name) for hashed, name in (admins or {}).items()}
        self._headers.clear()

    def identify(self, authorization: bytes | None, address: str, now_s: float) -> Identity | Denied:
        """The identity behind an `Authorization` header."""
        if self._anonymous is not None:
            return self._anonymous
        if authorization is None or len(authorization) > KEY_BYTES_MAX:
            return self._denied(address, now_s)
        mark = blake2b(self._prefix + authorization).digest()
        identity = self._headers.get(mark)
        if identity is None:
            identity = self._owner(authorization)
            if identity is None:
                return self._denied(address, now_s)
            if len(self._headers) >= HEADERS_MAX:
                self._headers.clear()
            self._headers[mark] = identity
        return identity

    def admin(self, authorization: bytes) -> str:
        """Which stored admin key the header holds; empty: none."""
        if len(authorization) > KEY_BYTES_MAX:
            return ""
        hashed = self._hashed_secret(authorization)
        known, name = self._admins.get(hashed, (_NOBODY, ""))
        return name if compare_digest(known, hashed) and hashed != _NOBODY else ""

    def _owner(self, authorization: bytes) -> Identity | None:
        """Whose key the header holds."""
        hashed = self._hashed_secret(authorization)
        known, identity = self._known.get(hashed, _MISS)
        return identity if compare_digest(known, hashed) else None

    def _hashed_secret(self, authorization: bytes) -> bytes:
        secret = authorization[7:].strip() if authorization[:7].lower() == BEARER.lower() else b""
        return self._hash(secret) if secret else _NOBODY

    def _denied(self, address: str, now_s: float) -> Denied:
        wait_s = self._failures.failed(address, now_s)
        if wait_s is None and self._is_unsure:
            return Denied("ledger_unavailable")
        return Denied("invalid_api_key") if wait_s is None else Denied("rate_limit_exceeded", wait_s)

    def _hash(self, secret: bytes) -> bytes:
        return digest(self._pepper, secret, "sha256")


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

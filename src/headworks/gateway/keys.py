"""Who is asking: API keys to tenant, client and scopes (H2).

A key is kept only as its HMAC-SHA-256 under a pepper and looked up by it, so no secret is compared character by
character; a key that is not known costs the same comparison. Keys of tenants and keys of the admin port are two tables:
neither opens what the other does. Failures are counted per address in a bounded table:
beyond a few a minute they are answered with 429 and no work. A good key passes all the same, since its address may be
shared. Identity comes from here alone: no header names a tenant (K43).

Where an issuer's tokens are taken (`issuer.py`), what is no key and looks like one of them is verified as such. Then it is
known again until it ends, or until other keys are.

An HMAC costs as much as reading the whole request. A header that was good is therefore known again by another keyed
hash, BLAKE2b, at a sixth of that; again nothing is compared but hashes whose key nobody outside has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest, digest
from typing import Protocol

from headworks.core.policy import INFINITE_S

BEARER = b"Bearer "
KEY_BYTES_MAX = 512
"""No key of ours is longer; a longer one is not even hashed."""
TOKEN_BYTES_MAX = 8_192
"""A signed token is longer; this one takes half a millisecond to refuse."""
HEADERS_MAX = 4_096
"""Good headers that are known again at once."""
ADDRESSES_MAX = 10_000
"""Addresses with failures that are remembered; beyond, the one heard from least recently is forgotten."""
FAILURES_MAX = 20
WINDOW_S = 60.0
"""`FAILURES_MAX` failures fill up, and drain evenly over `WINDOW_S`."""
TOKEN_DOTS = 2
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
    until_s: float = INFINITE_S
    """When this has to be found out again: the end of a token."""


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

    `ledger_unavailable`: the stored keys cannot be read, and it may be one of them. Of a token: `invalid_token`, or `forbidden`
    where it is good for no tenant, with why; `identity_unavailable` where nothing is at hand to verify it by.
    """

    reason: str
    retry_after_s: float | None = None
    subject: str = ""


class Tokens(Protocol):
    """Whoever can verify signed tokens."""

    def identify(self, token: bytes, now_s: float) -> Identity | Denied:
        """Whom it names."""


UNKNOWN = Denied("invalid_api_key")


class Keys:
    """All keys. With `anonymous` set everybody is that identity, and no key is looked at."""

    def __init__(self, pepper: bytes, keys: Iterable[Key] = (), anonymous: Identity | None = None) -> None:
        self._failures = Failures()
        self.number = 0
        """How often keys were made known: what was found by them holds while it is the same."""
        self._headers: dict[bytes, Identity] = {}
        """By their keyed hash, those that were good."""
        self.tokens: Tokens | None = None
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
        if authorization is None or len(authorization) > (KEY_BYTES_MAX if self.tokens is None else TOKEN_BYTES_MAX):
            return self._denied(address, now_s, UNKNOWN)
        mark = blake2b(self._prefix + authorization).digest()
        known = self._headers.get(mark)
        if known is not None and now_s < known.until_s:
            return known
        found = self._found(authorization, now_s)
        if isinstance(found, Denied):
            return self._denied(address, now_s, found)
        if len(self._headers) >= HEADERS_MAX:
            self._headers.clear()
        self._headers[mark] = found
        return found

    def forget(self) -> None:
        """Nobody is known again without being looked up, or verified."""
        self.number += 1
        self._headers.clear()

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

    def _found(self, authorization: bytes, now_s: float) -> Identity | Denied:
        """Whose key, or whose token."""
        identity = self._owner(authorization) if len(authorization) <= KEY_BYTES_MAX else None
        if identity is not None:
            return identity
        token = _secret(authorization)
        if self.tokens is None or token.count(b".") != TOKEN_DOTS:
            return UNKNOWN
        return self.tokens.identify(token, now_s)

    def _hashed_secret(self, authorization: bytes) -> bytes:
        secret = _secret(authorization)
        return self._hash(secret) if secret else _NOBODY

    def _denied(self, address: str, now_s: float, why: Denied) -> Denied:
        if why.reason == "identity_unavailable":  # no fault of whoever asks
            return why
        wait_s = self._failures.failed(address, now_s)
        if wait_s is not None:
            return Denied("rate_limit_exceeded", wait_s)
        return Denied("ledger_unavailable") if self._is_unsure and why is UNKNOWN else why

    def _hash(self, secret: bytes) -> bytes:
        return digest(self._pepper, secret, "sha256")


def _secret(authorization: bytes) -> bytes:
    """Empty: it is no bearer's."""
    return authorization[7:].strip() if authorization[:7].lower() == BEARER.lower() else b""


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

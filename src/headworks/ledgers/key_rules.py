"""Stored API keys, whatever they are stored in: what is kept of one, and what may become of it (H2).

A key is 256 random bits, shown once when it is issued. What stays is its HMAC-SHA-256 under a pepper that is not in the store
(`pepper.py`), what it may be used for and until when: whoever reads the store, or a backup of it, has no key; whoever can
only write to it cannot make one. A store reads what it has, asks here what that becomes, and writes it in one step. Times are
Unix seconds, given by the caller.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hmac import digest
from typing import NamedTuple, Protocol

from headworks.ledgers.errors import LedgerError

ACTIVE_MAX = 2
"""Keys a tenant has at a time: one in use, and its successor while clients change over."""
ENDED_KEPT_MAX = 20
"""Keys of a tenant that have ended and are still listed; beyond, the oldest is forgotten."""
KEY_PREFIX = "hw-"
"""So that a key is known for what it is where it should not be: in a repository, in a chat."""
KEY_RANDOM_BYTES = 32
ID_RANDOM_BYTES = 6
ADMIN = ""
"""Whose keys open the admin port: nobody's among the tenants, whose names are never empty."""


class KeyStoreError(LedgerError):
    """Stored keys cannot be read or written. The text says why and what would help."""


@dataclass(slots=True)
class StoredKey:
    """One key as it is kept. `classes` and `models` None: all that its tenant may use."""

    id: str
    tenant: str
    """`ADMIN` for one that opens the admin port and nothing else."""
    hash: bytes = field(repr=False)
    pepper_mark: bytes = field(repr=False)
    """Of the pepper it was hashed under."""
    classes: tuple[str, ...] | None
    models: tuple[str, ...] | None
    lifetime_s: float | None
    """What it was issued for; it may have to end before, once it has a successor."""
    created_s: float
    expires_s: float | None
    revoked_s: float | None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_s is not None:
            return "revoked"
        return "active" if self.expires_s is None or now_s < self.expires_s else "expired"


@dataclass(slots=True)
class Wanted:
    """What a new key shall be good for."""

    tenant: str
    classes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    lifetime_s: float | None = None


class Keyring(Protocol):
    """Stored keys as a gateway or a verb asks for them. Each may raise `LedgerError`."""

    name: str
    """What they are stored in, without any secret."""
    stale_s_max: float
    """How long what was read last is believed while the store cannot be asked."""

    async def changes(self) -> str:
        """Another text after each change, whoever made it."""

    async def kept(self) -> list[StoredKey]:
        """All that are kept, by tenant, the oldest first."""

    async def pepper(self, now_s: float) -> bytes:
        """What keys are hashed under. Raises if it is not what those that are good were hashed under."""

    async def issue(
        self, wanted: Wanted, now_s: float, old: str | None = None, old_ends_s: float = 0.0
    ) -> tuple[str, StoredKey] | None:
        """Make a key: the key itself, which nobody can be shown again, and what is kept of it.

        `old`: the key it succeeds, which then ends at `old_ends_s`. None, and nothing is changed, if the tenant would have
        more than `ACTIVE_MAX`.
        """

    async def revoke(self, name: str, now_s: float) -> None:
        """End a key now. One that has been revoked stays as it is."""

    async def close(self) -> None:
        """Let go of the store."""


class Change(NamedTuple):
    """What one step does to what is kept."""

    written: list[StoredKey]
    forgotten: list[str]


def made(wanted: Wanted, pepper: bytes, now_s: float) -> tuple[str, StoredKey]:
    """A new key, and what is to be kept of it."""
    secret = KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)
    ends_s = None if wanted.lifetime_s is None else now_s + wanted.lifetime_s
    key = StoredKey(
        secrets.token_hex(ID_RANDOM_BYTES), wanted.tenant, digest(pepper, secret.encode(), "sha256"), mark(pepper),
        wanted.classes, wanted.models, wanted.lifetime_s, now_s, ends_s, None,
    )  # fmt: skip
    return secret, key


def added(kept: Iterable[StoredKey], new: StoredKey, now_s: float, old: str | None, old_ends_s: float) -> Change | None:
    """This key beside those; the one it succeeds ends. None if its tenant would have too many."""
    keys = {key.id: key for key in kept}
    written = [new]
    if old is not None and old in keys:
        keys[old] = _ending(keys[old], old_ends_s, now_s)
        written.append(keys[old])
    of_tenant = [key for key in keys.values() if key.tenant == new.tenant]
    ended = [key for key in of_tenant if key.state(now_s) != "active"]
    if len(of_tenant) - len(ended) >= ACTIVE_MAX:
        return None
    ended.sort(key=lambda key: (-key.created_s, key.id))
    return Change(written, [key.id for key in ended[ENDED_KEPT_MAX:]])


def revoked(kept: Iterable[StoredKey], name: str, now_s: float) -> Change | None:
    """That key ends now. None if there is nothing to do."""
    found = [replace(key, revoked_s=now_s) for key in kept if key.id == name and key.revoked_s is None]
    return Change(found, []) if found else None


def merged(one: StoredKey, other: StoredKey) -> StoredKey:
    """One key as two have it: it ends when the first of them says so."""
    return replace(
        one, expires_s=_first(one.expires_s, other.expires_s), revoked_s=_first(one.revoked_s, other.revoked_s)
    )  # fmt: skip


def in_order(keys: Iterable[StoredKey]) -> list[StoredKey]:
    """By tenant, the oldest first."""
    return sorted(keys, key=lambda key: (key.tenant, key.created_s, key.id))


def mark(pepper: bytes) -> bytes:
    """Tells one pepper from another, and nothing about it."""
    return digest(pepper, b"headworks keys", "sha256")[:8]


def check_marks(good: Sequence[StoredKey], wanted: bytes, store: str, origin: str) -> None:
    """All keys that are good are hashed under one pepper. Where none is good any more, a new one may begin."""
    if any(key.pepper_mark != wanted for key in good):
        raise KeyStoreError(
            f"Keys in {store} were hashed under another pepper than that in {origin}. "
            "Put the right one back, or revoke these keys and issue new ones."
        )


def _ending(key: StoredKey, ends_s: float, now_s: float) -> StoredKey:
    """It ends at that time, unless it ends before."""
    if ends_s <= now_s:
        return key if key.revoked_s is not None else replace(key, revoked_s=now_s)
    return replace(key, expires_s=_first(key.expires_s, ends_s))


def _first(one_s: float | None, other_s: float | None) -> float | None:
    return other_s if one_s is None else one_s if other_s is None else min(one_s, other_s)

"""Stored API keys in a shared ledger's store, for every gateway of its domain (H2; the rules are in `key_rules.py`).

Two things make them other than keys in a file. *Whoever changes them compares*: what is written counts only if nobody else has
written since it was read, else it is done again on what is there now. *The store may forget*, and the gateways are its backup,
as for all that stands in the ledger (docs/decisions/0043): in another life of the store a gateway puts back what it knows and
does not find. A key that two have in two ways ends when the first of them says so, so what was revoked stays revoked
wherever one that has heard of it is left. Within one life only keys that have ended are ever taken away.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from headworks.ledgers import key_rules
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.key_rules import Change, KeyStoreError, StoredKey, Wanted
from headworks.ledgers.pepper import Pepper
from headworks.ledgers.valkey_line import Line, StoreError, StoreLost, open_line
from headworks.ledgers.valkey_place import Place

STALE_S_MAX = 3_600.0
"""Without a store nobody hears of a revocation. After so long no stored key is believed any more."""
TRIES_MAX = 32
"""Writes in which another was always first, before that is given up."""
VERB_S_MAX = 3.0
"""How long a verb waits for each answer."""
MARK = "mark"
"""The field beside the keys, whose names are hexadecimal: another text after each change."""

_READ = """#!lua flags=allow-oom
local mark = redis.call("HGET", KEYS[2], ARGV[1]) or ""
local epoch = redis.call("HGET", KEYS[1], "epoch") or ""
return { epoch, mark, mark ~= ARGV[2] and redis.call("HGETALL", KEYS[2]) or {} }"""
_WRITE = """#!lua
if (redis.call("HGET", KEYS[1], ARGV[1]) or "") ~= ARGV[2] then
  return 0
end
for at = 5, 4 + 2 * ARGV[4], 2 do
  redis.call("HSET", KEYS[1], ARGV[at], ARGV[at + 1])
end
for at = 5 + 2 * ARGV[4], #ARGV do
  redis.call("HDEL", KEYS[1], ARGV[at])
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[3])
return 1"""
"""Both without `no-writes`: a replica, which may be behind, answers neither."""

Asking = Callable[..., Awaitable[object]]
Step = Callable[[Sequence[StoredKey]], Change | None]


class ValkeyKeys:
    """A `Keyring` in a server that others share. `ask` sends one command there and raises `LedgerError` if nobody answers."""

    stale_s_max = STALE_S_MAX

    def __init__(self, name: str, root: str, pepper: str, ask: Asking, close: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._root, self._place = root, f"{root}:api-keys"
        self._pepper = Pepper("", pepper)
        self._secret = self._pepper.load_or_make()
        self._ask = ask
        self._close = close
        self._known: dict[str, StoredKey] = {}
        self._epoch, self._mark = "", ""
        """The life of the store in which they were read, and their mark then."""

    async def changes(self) -> str:
        epoch, mark, _ = await self._asked(_READ, (self._root, self._place), MARK, self._mark)
        return f"{epoch.decode()} {mark.decode()}"

    async def kept(self) -> list[StoredKey]:
        """Those that are there. In another life of the store, together with those that it has forgotten."""
        for _ in range(TRIES_MAX):
            epoch, mark, found = await self._read()
            if self._known and (epoch != self._epoch or not mark):
                lacking = self._lacking(found)
                if lacking:
                    await self._write(mark, Change(lacking, []))  # or another was first: what is there now?
                    continue
            self._take(epoch, mark, found)
            return key_rules.in_order(self._known.values())
        raise self._too_busy()

    async def pepper(self, now_s: float) -> bytes:
        self._check_marks(self._known.values(), now_s)
        return self._secret

    async def issue(
        self, wanted: Wanted, now_s: float, old: str | None = None, old_ends_s: float = 0.0
    ) -> tuple[str, StoredKey] | None:
        secret, new = key_rules.made(wanted, self._secret, now_s)

        def step(kept: Sequence[StoredKey]) -> Change | None:
            self._check_marks(kept, now_s)
            return key_rules.added(kept, new, now_s, old, old_ends_s)

        return (secret, new) if await self._change(step) else None

    async def revoke(self, name: str, now_s: float) -> None:
        await self._change(lambda kept: key_rules.revoked(kept, name, now_s))

    async def close(self) -> None:
        self._close()

    async def _change(self, step: Step) -> bool:
        """One step on what is there now, again if another was first. False: it has nothing to do."""
        for _ in range(TRIES_MAX):
            change = step(await self.kept())
            if change is None:
                return False
            if await self._write(self._mark, change):
                self._known |= {key.id: key for key in change.written}
                return True
        raise self._too_busy()

    async def _read(self) -> tuple[str, str, dict[str, StoredKey]]:
        epoch, mark, flat = await self._asked(_READ, (self._root, self._place), MARK, " ")
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = {name.decode(): self._key(name.decode(), blob) for name, blob in pairs if name != MARK.encode()}
        return epoch.decode(), mark.decode(), found

    async def _write(self, mark: str, change: Change) -> bool:
        """Whether nobody had written since that mark."""
        words = [part for key in change.written for part in (key.id, _blob(key))]
        again = secrets.token_hex(8)
        told = await self._asked(_WRITE, (self._place,), MARK, mark, again, len(change.written), *words, *change.forgotten)
        return bool(told)

    def _lacking(self, found: dict[str, StoredKey]) -> list[StoredKey]:
        """What we know and this store does not say."""
        both = [key_rules.merged(found.get(name, key), key) for name, key in self._known.items()]
        return [key for key in both if found.get(key.id) != key]

    def _take(self, epoch: str, mark: str, found: dict[str, StoredKey]) -> None:
        known = self._known
        self._known = {name: key_rules.merged(key, known.get(name, key)) for name, key in found.items()}
        self._epoch, self._mark = epoch, mark

    async def _asked(self, script: str, keys: tuple[str, ...], *words: bytes | str | int) -> Any:
        return await self._ask("EVAL", script, len(keys), *keys, *words)

    def _key(self, name: str, blob: bytes) -> StoredKey:
        try:
            row = msgspec.msgpack.decode(blob, type=_Row)
        except msgspec.DecodeError as error:
            raise KeyStoreError(f"The key {name} in {self.name} is damaged: {error}.") from error
        return StoredKey(name, *(getattr(row, field) for field in _Row.__struct_fields__))

    def _check_marks(self, keys: Iterable[StoredKey], now_s: float) -> None:
        good = [key for key in keys if key.state(now_s) == "active"]
        key_rules.check_marks(good, key_rules.mark(self._secret), self.name, self._pepper.origin)

    def _too_busy(self) -> KeyStoreError:
        return KeyStoreError(f"The keys in {self.name} were changed by others {TRIES_MAX} times meanwhile: try again.")


class _Row(msgspec.Struct, array_like=True):
    """A `StoredKey` as it stands in the store, under its id. Fields may be added at the end."""

    tenant: str
    hash: bytes
    pepper_mark: bytes
    classes: tuple[str, ...] | None
    models: tuple[str, ...] | None
    lifetime_s: float | None
    created_s: float
    expires_s: float | None
    revoked_s: float | None


def _blob(key: StoredKey) -> bytes:
    return msgspec.msgpack.encode(_Row(*(getattr(key, field) for field in _Row.__struct_fields__)))


class Visit:
    """A connection for a verb, which has no gateway's: opened when something is asked."""

    def __init__(self, place: Place, root: str) -> None:
        self._place = place
        self._root = root
        self._line: Line | None = None

    async def ask(self, *words: bytes | str | int) -> object:
        """Raises `LedgerError` if nobody answers."""
        try:
            return await asyncio.wait_for(self._asked(words), VERB_S_MAX)
        except TimeoutError:
            raise LedgerError(f"The ledger at {self._place} did not answer for {VERB_S_MAX:g} s.") from None
        except (StoreError, StoreLost) as error:
            raise LedgerError(f"The ledger at {self._place} does not answer: {error}") from error

    async def _asked(self, words: tuple[bytes | str | int, ...]) -> object:
        if self._line is None:
            self._line = await open_line(await self._place.find(self._root), lambda: None)
        return await self._line.asked(*words)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

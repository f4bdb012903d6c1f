"""What can be asked about stored keys: list, add, rotate, revoke (H2).

The same desk answers a live gateway's admin port and `headworks keys` at a store by itself, so both mean the same.
It answers with an HTTP status and a body in plain values. The key itself stands in the answer to `add` and `rotate`, once;
its hash stands nowhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from headworks.core.policy import Policy
from headworks.ledgers.base import LedgerError
from headworks.ledgers.key_rules import ACTIVE_MAX, ADMIN, Keyring, StoredKey, Wanted

LIFETIME_S_MAX = 10 * 366 * 86_400.0
GRACE_S_MAX = 90 * 86_400.0
GRACE_S = 86_400.0
"""How long the old key of a rotation still works unless something else is asked for."""
SCOPES_MAX = 64
NO_STORE = (
    "Keys are stored beside the ledger, and this one has no place for them: set ledger.url to sqlite:PATH and restart, or, on "
    "a shared ledger, ledger.keys_secret to a secret that all its gateways have, or name keys in the configuration "
    '(tenants.NAME.keys: ["env:VARIABLE"]).'
)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=SCOPES_MAX)]
Lifetime = Annotated[float, msgspec.Meta(gt=0, le=LIFETIME_S_MAX)]


class Add(msgspec.Struct, forbid_unknown_fields=True):
    """A key for a tenant, or for the admin port. Classes and models not stated: all its tenant's, now and later."""

    tenant: Name | None = None
    admin: bool = False
    classes: Names | None = None
    models: Names | None = None
    lifetime_s: Lifetime | None = None


class Rotate(msgspec.Struct, forbid_unknown_fields=True):
    """A successor with the same scopes. `lifetime_s` not stated: as long as the old key was given."""

    grace_s: Annotated[float, msgspec.Meta(ge=0, le=GRACE_S_MAX)] = GRACE_S
    lifetime_s: Lifetime | None = None


class DeskAnswer(NamedTuple):
    """`status` 200 or 201: done. 400, 404, 409: that cannot be done. 501, 503: nothing can be done about keys here."""

    status: int
    body: dict[str, Any]


class KeyDesk:
    """`policy` says which tenants, classes and models there are now; `changed` is called after every change."""

    def __init__(
        self,
        store: Keyring | None,
        policy: Callable[[], Policy],
        wall_s: Callable[[], float],
        changed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._wall_s = wall_s
        self._changed = changed

    async def do(self, verb: str, name: str = "", asked: Any = None) -> DeskAnswer:
        """One of `list`, `add`, `rotate`, `revoke`. `name`: which key; `asked`: what is wanted, as JSON has it."""
        store = self._store
        if store is None:
            return _refused(501, NO_STORE)
        try:
            if verb == "list":
                return await self._list(store)
            if verb == "add":
                return await self._add(store, msgspec.convert(asked, Add))
            found = await _find(store, name)
            if found is None:
                return _refused(404, f"There is no key {name[:64]!r}; headworks keys list shows the ids.")
            if verb == "rotate":
                return await self._rotate(store, found, msgspec.convert(asked, Rotate))
            return await self._revoke(store, found)
        except msgspec.ValidationError as error:
            return _refused(400, f"{error}.")
        except LedgerError as error:
            return _refused(503, str(error))

    async def _list(self, store: Keyring) -> DeskAnswer:
        now_s = self._wall_s()
        return DeskAnswer(200, {"store": store.name, "keys": [shown(key, now_s) for key in await store.kept()]})

    async def _add(self, store: Keyring, asked: Add) -> DeskAnswer:
        fault = self._fault(asked)
        if fault:
            return _refused(400, fault)
        now_s = self._wall_s()
        wanted = Wanted(asked.tenant or ADMIN, asked.classes, asked.models, asked.lifetime_s)
        return await self._issued(await store.issue(wanted, now_s), wanted.tenant, now_s)

    async def _rotate(self, store: Keyring, old: StoredKey, asked: Rotate) -> DeskAnswer:
        now_s = self._wall_s()
        state = old.state(now_s)
        if state != "active":
            return _refused(409, f"The key {old.id} is {state}: add a new one.")
        wanted = Wanted(old.tenant, old.classes, old.models, asked.lifetime_s or old.lifetime_s)
        return await self._issued(await store.issue(wanted, now_s, old.id, now_s + asked.grace_s), old.tenant, now_s, old.id)

    async def _issued(
        self, issued: tuple[str, StoredKey] | None, tenant: str, now_s: float, old: str | None = None
    ) -> DeskAnswer:
        if issued is None:
            whose = "The admin port" if tenant == ADMIN else f"The tenant {tenant}"
            advice = "rotate with a grace of 0, or revoke one" if old else "revoke one, or rotate one"
            return _refused(409, f"{whose} has {ACTIVE_MAX} active keys, which is the most: {advice}.")
        await self._tell()
        secret, kept = issued
        return DeskAnswer(201, {"key": secret, **shown(kept, now_s), "replaces": old})

    async def _revoke(self, store: Keyring, found: StoredKey) -> DeskAnswer:
        now_s = self._wall_s()
        await store.revoke(found.id, now_s)
        await self._tell()
        kept = await _find(store, found.id)
        return DeskAnswer(200, shown(kept or found, now_s))

    async def _tell(self) -> None:
        if self._changed is not None:
            await self._changed()

    def _fault(self, asked: Add) -> str | None:
        """What of the scopes does not exist. A key that could never open anything is not issued."""
        if asked.admin:
            apart = asked.tenant is None and asked.classes is None and asked.models is None
            return None if apart else "A key for the admin port has no tenant, classes or models: it opens nothing else."
        policy = self._policy()
        tenant = policy.tenants.get(asked.tenant or "")
        if tenant is None:
            return f"There is no tenant {asked.tenant or ''!r} in the configuration; there are {_listed(policy.tenants)}."
        for name in asked.classes or ():
            if name not in tenant.classes:
                return f"The tenant {tenant.name} may not use the class {name!r}; it may use {_listed(tenant.classes)}."
        allowed = tenant.models if tenant.models is not None else _served(policy)
        for name in asked.models or ():
            if allowed is not None and name not in allowed:
                return f"The tenant {tenant.name} may not use the model {name!r}; it may use {_listed(allowed)}."
        return None


async def _find(store: Keyring, name: str) -> StoredKey | None:
    return next((key for key in await store.kept() if key.id == name), None)


def shown(key: StoredKey, now_s: float) -> dict[str, Any]:
    """What may be seen of a key: everything but itself and its hash. Times are Unix seconds."""
    return {
        "id": key.id,
        "tenant": key.tenant or None,
        "admin": key.tenant == ADMIN,
        "classes": key.classes,
        "models": key.models,
        "state": key.state(now_s),
        "created_s": key.created_s,
        "expires_s": key.expires_s,
        "revoked_s": key.revoked_s,
    }


def _refused(status: int, sentence: str) -> DeskAnswer:
    return DeskAnswer(status, {"error": {"message": sentence}})


def _served(policy: Policy) -> list[str] | None:
    """The models of all pools, or None if a pool takes them from its engines."""
    pools = policy.pools.values()
    return [model for pool in pools for model in pool.models] if all(pool.models for pool in pools) else None


def _listed(names: object) -> str:
    listed = [str(name) for name in names] if isinstance(names, (dict, list, tuple)) else []
    return ", ".join(listed[:10]) + (" …" if len(listed) > 10 else "") if listed else "none"

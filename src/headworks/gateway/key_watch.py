"""Keeps the keys that are known what the configuration and the store say, with no part in any request (H2).

Once a second it looks whether anything has changed there, whoever changed it, and whether a key has expired. So a key that was
revoked or has expired opens nothing a second later, and one that was revoked through this gateway opens nothing from then
on. What was let in before runs to its end.

A store that cannot be asked takes nobody's key away: what was known stays, what had ended stays ended. In a store that others
change meanwhile that is true for so long (`Keyring.stale_s_max`); then, as before it was reached for the first time, an unknown
key may be one of its, and is told to come back instead of that it is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable

from headworks.config.settings import Settings
from headworks.core.policy import Policy
from headworks.gateway import clock, issuer_watch
from headworks.gateway.key_desk import KeyDesk
from headworks.gateway.keys import HashedKey, Identity, Key, Keys
from headworks.ledgers.base import LedgerError
from headworks.ledgers.key_rules import ADMIN, Keyring, KeyStoreError, StoredKey

log = logging.getLogger("headworks.gateway")

ANONYMOUS = Identity("anonymous", "anonymous")
LOOK_S = 1.0
START_LOOK_S = 0.05


class KeyWatch:
    """Owns `keys`, which the public port asks, and the store behind them."""

    def __init__(
        self,
        store: Keyring | None,
        settings: Settings,
        policy: Policy,
        wall_s: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        clock_s: Callable[[], float] = clock.now_s,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._wall_s = wall_s
        self._clock_s = clock_s
        self._changed = changed
        """Called when other keys are known than before."""
        self._store = store
        self._kept: list[StoredKey] = []
        """As last read."""
        self._pepper = secrets.token_bytes(32)
        """The store's, once it has keys; until then the configuration's keys are hashed under one of this process."""
        self.keys = Keys(self._pepper)
        self._issuer = issuer_watch.opened(settings, policy, self.keys, wall_s, clock_s)
        self.desk = KeyDesk(self._store, lambda: self._policy, wall_s, self.refresh)
        self._admin_was = False
        """The admin port has had a key of its own. One that has ended does not open the port to everybody."""
        self.clients: set[str] = set()
        """Names that stand in metrics."""
        self._seen = ""
        self._believed_until_s = math.inf if store is None else -math.inf
        """What was read of the store is believed as long as this."""
        self._expiry_s = math.inf
        self._failed = ""
        self._task: asyncio.Task[None] | None = None
        self._know()

    @property
    def admin_exists(self) -> bool:
        """Whether the admin port has a key of its own, or may have one: a store that was never read opens it to nobody."""
        return self._admin_was or self._believed_until_s == -math.inf

    async def start(self, patience_s: float | None = None) -> None:
        """Read, and begin to look. Raises `LedgerError` if the store cannot be used.

        `patience_s`: a store elsewhere that does not answer is waited for as long as this, and then while the gateway runs.
        """
        end_s = self._clock_s() + (patience_s or 0.0)
        while True:
            try:
                await self._read()
                break
            except LedgerError as error:
                if patience_s is None or isinstance(error, KeyStoreError):
                    raise
                if self._clock_s() >= end_s:
                    log.error("stored keys are not known yet: %s", error)
                    break
            await asyncio.sleep(START_LOOK_S)
        self._know()
        self._changed()
        if self._issuer is not None:
            await self._issuer.start()
        self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Stop looking, and let go of the store."""
        if self._task is not None:
            self._task.cancel()
        if self._issuer is not None:
            await self._issuer.close()
        if self._store is not None:
            await self._store.close()

    def change(self, settings: Settings, policy: Policy) -> None:
        """After a reload: other tenants, other keys in the configuration. The store and its pepper stay."""
        self._settings = settings
        self._policy = policy
        if self._issuer is not None and settings.token_rules is not None:
            self._issuer.change(settings.token_rules, policy)
        self._know()

    async def refresh(self) -> None:
        """Read the store again. If it cannot be read, what was known of it stays, and that is said once."""
        try:
            await self._read()
            self._failed = ""
        except LedgerError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error("stored keys stay as they are known: %s", error)
        self._know()
        self._changed()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Read again if anything has changed, or a key has expired, or nothing may be believed any more."""
        try:
            stale = self._store is not None and await self._store.changes() != self._seen
            if self._store is not None and not stale:
                self._believe(self._store)
        except LedgerError:
            stale = True  # the attempt to read says why
        if stale or self._wall_s() >= self._expiry_s:
            await self.refresh()

    async def _read(self) -> None:
        store = self._store
        if store is None:
            return
        seen = await store.changes()
        self._kept = await store.kept()  # first: a pepper that has gone since the start must not keep a revocation out
        self._seen = seen
        self._believe(store)
        if any(key.state(self._wall_s()) == "active" for key in self._kept):
            self._pepper = await store.pepper(self._wall_s())

    def _believe(self, store: Keyring) -> None:
        self._believed_until_s = self._clock_s() + store.stale_s_max

    def _know(self) -> None:
        """The configuration's keys and the stored ones that are good now, of tenants there are now."""
        now_s, settings = self._wall_s(), self._settings
        is_unsure = self._clock_s() >= self._believed_until_s
        good = [] if is_unsure else [key for key in self._kept if key.state(now_s) == "active"]
        stored = [HashedKey(key.hash, _identity(key)) for key in good if key.tenant in self._policy.tenants]
        configured = [Key(key.key.reveal(), Identity(key.tenant, key.client)) for key in settings.keys]
        admins = {key.hash: key.id for key in good if key.tenant == ADMIN}
        anonymous = ANONYMOUS if settings.is_anonymous else None
        self.keys.change(self._pepper, configured, stored, admins, anonymous, is_unsure=is_unsure)
        identities = [ANONYMOUS, *(key.identity for key in configured), *(key.identity for key in stored)]
        self.clients = {identity.client for identity in identities}
        self._admin_was = self._admin_was or any(key.tenant == ADMIN for key in self._kept)
        self._expiry_s = min((key.expires_s for key in good if key.expires_s is not None), default=math.inf)


def _identity(key: StoredKey) -> Identity:
    return Identity(key.tenant, f"{key.tenant}/{key.id}", key.classes, key.models)

"""Keeps the keys that are known what the configuration and the store say, with no part in any request (H2).

Once a second it looks at one number, which the store raises with every change whoever made it, and at the time the next
key expires. So a key that was revoked or has expired opens nothing a second later, and one that was revoked through this
gateway opens nothing from then on. What was let in before runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable

from headworks.config.settings import Settings
from headworks.core.policy import Policy
from headworks.gateway.key_desk import KeyDesk
from headworks.gateway.keys import HashedKey, Identity, Key, Keys
from headworks.ledgers.base import LedgerError
from headworks.ledgers.keys import ADMIN, KeyStore, StoredKey

log = logging.getLogger("headworks.gateway")

ANONYMOUS = Identity("anonymous", "anonymous")
LOOK_S = 1.0


class KeyWatch:
    """Owns `keys`, which the public port asks, and the store behind them. Raises `LedgerError` if that cannot be used."""

    def __init__(
        self, settings: Settings, policy: Policy, wall_s: Callable[[], float], changed: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._wall_s = wall_s
        self._changed = changed
        """Called when other keys are known than before."""
        given = settings.keys_secret
        path = settings.keys_path
        self._store = None if path is None else KeyStore(path, None if given is None else given.reveal())
        self._kept: list[StoredKey] = []
        """As last read."""
        self._pepper = secrets.token_bytes(32)
        """The store's, once it has keys; until then the configuration's keys are hashed under one of this process."""
        self.keys = Keys(self._pepper)
        self.desk = KeyDesk(self._store, lambda: self._policy, wall_s, self.refresh)
        self.admin_exists = False
        """Whether the admin port has had a key of its own. One that has ended does not open the port to everybody."""
        self.clients: set[str] = set()
        """Names that stand in metrics."""
        self._seen = 0
        self._expiry_s = math.inf
        self._failed = ""
        self._timer: asyncio.TimerHandle | None = None
        self._read()
        self._know()

    def start(self) -> None:
        """Begin to look."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Stop looking, and let go of the file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._store is not None:
            self._store.close()

    def change(self, settings: Settings, policy: Policy) -> None:
        """After a reload: other tenants, other keys in the configuration. The store and its pepper stay."""
        self._settings = settings
        self._policy = policy
        self._know()

    def refresh(self) -> None:
        """Read the store again. If it cannot be read, what was known of it stays, and that is said once."""
        try:
            self._read()
            self._failed = ""
        except LedgerError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error("stored keys stay as they are known: %s", error)
        self._know()
        self._changed()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        try:
            stale = self._store is not None and self._store.changes() != self._seen
        except LedgerError:
            stale = True  # the attempt to read says why
        if stale or self._wall_s() >= self._expiry_s:
            self.refresh()

    def _read(self) -> None:
        store = self._store
        if store is None:
            return
        seen = store.changes()
        self._kept = store.kept()  # first: a pepper that has gone since the start must not keep a revocation out
        self._seen = seen
        if any(key.state(self._wall_s()) == "active" for key in self._kept):
            self._pepper = store.pepper(self._wall_s())

    def _know(self) -> None:
        """The configuration's keys and the stored ones that are good now, of tenants there are now."""
        now_s, settings = self._wall_s(), self._settings
        good = [key for key in self._kept if key.state(now_s) == "active"]
        stored = [HashedKey(key.hash, _identity(key)) for key in good if key.tenant in self._policy.tenants]
        configured = [Key(key.key.reveal(), Identity(key.tenant, key.client)) for key in settings.keys]
        admins = [key.hash for key in good if key.tenant == ADMIN]
        self.keys.change(self._pepper, configured, stored, admins, ANONYMOUS if settings.is_anonymous else None)
        identities = [ANONYMOUS, *(key.identity for key in configured), *(key.identity for key in stored)]
        self.clients = {identity.client for identity in identities}
        self.admin_exists = any(key.tenant == ADMIN for key in self._kept)
        self._expiry_s = min((key.expires_s for key in good if key.expires_s is not None), default=math.inf)


def _identity(key: StoredKey) -> Identity:
    return Identity(key.tenant, f"{key.tenant}/{key.id}", key.classes, key.models)

"""Break-glass: what an operator orders beside the configuration, for as long as it takes, and the record of it (F13).

    freeze, thaw       nothing new of a tenant is taken, what waits is refused, what runs runs on
    observe, enforce   decide and record but refuse nobody, or the other way round, whatever the configuration says
    drain, resume, withdraw   a replica (`replicas.py`)
    release, withdraw  in the ledger (`ledger_desk.py`)

Each has an actor (the name of the admin key), a time and a reason, which stand in the log of the process, in the decision log
as a line `declared`, and in `/admin/orders`. Each is taken back by its opposite. Orders about tenants and the mode hold over
reloads; where the ledger is a file of this gateway they stand in a file beside it and hold over restarts as well. Where several
share a ledger they stand in its store and hold for all of them (`shared_orders.py`)."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headworks.config import ledger_url
from headworks.config.settings import Settings
from headworks.core.policy import Policy
from headworks.gateway.clock import UtcStamp
from headworks.gateway.log_facts import Declared
from headworks.gateway.replicas import RESUME

if TYPE_CHECKING:
    from headworks.ledgers.valkey_orders import Word

log = logging.getLogger("headworks.gateway")

FREEZE, THAW = TENANT_VERBS = ("freeze", "thaw")
OBSERVE, ENFORCE = MODE_VERBS = ("observe", "enforce")
SHOWN_MAX = 200
"""Declarations that are shown; all of them are in the decision log."""


class Unordered(Exception):
    """What was ordered cannot be. The text says why."""


class Order(msgspec.Struct):
    """One that is in force."""

    actor: str
    utc: str
    reason: str


class InForce(msgspec.Struct):
    """The same, with what was ordered of whom."""

    verb: str
    subject: str
    """A tenant or a replica; empty: everybody."""
    actor: str
    utc: str
    reason: str


class Kept(msgspec.Struct):
    """Orders as they are kept in a file."""

    frozen: dict[str, Order] = {}
    mode: str = ""
    """`observe` or `enforce`; empty: as the configuration says."""
    mode_order: Order | None = None


class Shown(msgspec.Struct):
    """One declaration, with when it was made."""

    utc: str
    declared: Declared


class Orders:
    """One gateway's."""

    def __init__(self, settings: Settings, note: Callable[[Declared], None], wall_s: Callable[[], float]) -> None:
        """`note` puts a declaration into the decision log."""
        scheme, _, path = settings.ledger_url.partition(":")
        self._path = Path(f"{path}.orders") if scheme == "sqlite" else None
        self._is_shared = ledger_url.is_shared(settings.ledger_url)
        self._note = note
        self._wall_s = wall_s
        self._kept = self._read()
        self._replicas: dict[str, tuple[str, Order]] = {}
        """What was told of each replica: verb and order. What it does is done in `replicas.py`."""
        self._declared: deque[Shown] = deque(maxlen=SHOWN_MAX)

    # what holds

    def applied(self, policy: Policy) -> Policy:
        """The configuration's policy with what is ordered beside it."""
        frozen = [name for name in self._kept.frozen if name in policy.tenants]
        if frozen:
            tenants = {name: replace(policy.tenants[name], frozen=True) for name in frozen}
            policy = replace(policy, tenants=policy.tenants | tenants)
        if self._kept.mode and policy.observe != (self._kept.mode == OBSERVE):
            policy = replace(policy, observe=self._kept.mode == OBSERVE)
        return policy

    def holds(self) -> str:
        """For whom and for how long."""
        if self._is_shared:
            return "all gateways of this ledger; they hear of it within a second, or when its store is there again"
        return "this gateway, over restarts" if self._path is not None else "this gateway, until it ends"

    def shown(self, policy: Policy) -> dict[str, Any]:
        """All that is in force, and what was declared lately, newest last."""
        return {
            "mode": OBSERVE if policy.observe else ENFORCE,
            "mode_order": self._kept.mode_order,
            "frozen": dict(self._kept.frozen),
            "in_force": self._in_force(),
            "holds": self.holds(),
            "declared": list(self._declared),
        }

    def _in_force(self) -> list[InForce]:
        """What nobody has taken back, oldest first."""
        found = [(FREEZE, name, order) for name, order in self._kept.frozen.items()]
        found += [(verb, name, order) for name, (verb, order) in self._replicas.items()]
        if self._kept.mode_order is not None:
            found.append((self._kept.mode, "", self._kept.mode_order))
        return sorted(
            (InForce(verb, subject, order.actor, order.utc, order.reason) for verb, subject, order in found),
            key=lambda one: one.utc,
        )

    # what is ordered

    def tenant(self, verb: str, name: str, declared_by: str, reason: str, policy: Policy) -> None:
        """Freeze or thaw one. Raises `Unordered`."""
        frozen = self._kept.frozen
        if verb == THAW:
            if frozen.pop(name, None) is None:
                raise Unordered(f"{name} is not frozen.")
        elif name not in policy.tenants:
            raise Unordered(f"There is no tenant {name}. There are {', '.join(policy.tenants)}.")
        else:
            frozen[name] = self._order(declared_by, reason)

    def mode(self, verb: str, declared_by: str, reason: str, configured: Policy) -> bool:
        """Observe or enforce from now on. Raises `Unordered`.

        True: that is what the configuration says, so what was ordered is taken back, and nothing stands in its place.
        """
        is_configured = configured.observe == (verb == OBSERVE)
        if self._kept.mode == verb or (is_configured and not self._kept.mode):
            raise Unordered(f"This gateway is told to {verb} already.")
        self._kept.mode = "" if is_configured else verb
        self._kept.mode_order = None if is_configured else self._order(declared_by, reason)
        return is_configured

    def replica(self, verb: str, name: str, declared_by: str, reason: str) -> None:
        """One was told so; `Replicas` took it."""
        self._note_replica(verb, name, self._order(declared_by, reason))

    def _note_replica(self, verb: str, name: str, order: Order) -> None:
        if verb == RESUME:
            self._replicas.pop(name, None)
        else:
            self._replicas[name] = verb, order

    def heard(self, word: Word) -> None:
        """Another gateway of this ledger was told."""
        order = Order(word.actor, word.utc, word.reason)
        if word.verb == FREEZE:
            self._kept.frozen[word.subject] = order
        elif word.verb == THAW:
            self._kept.frozen.pop(word.subject, None)
        elif word.verb not in MODE_VERBS:
            self._note_replica(word.verb, word.subject, order)
        else:
            self._kept.mode = "" if word.taken_back else word.verb
            self._kept.mode_order = None if word.taken_back else order

    def declare(self, actor: str, verb: str, subject: str, reason: str, outcome: str) -> None:
        """Write down what an operator did, and what came of it."""
        declared = Declared(actor, verb, subject, reason, outcome)
        log.warning("an operator declares: %s %s: %s (by %s: %s)", verb, subject, reason, actor, outcome)
        self._declared.append(Shown(UtcStamp().text(self._wall_s()), declared))
        self._note(declared)

    def _order(self, actor: str, reason: str) -> Order:
        return Order(actor, UtcStamp().text(self._wall_s()), reason)

    # the file

    def _read(self) -> Kept:
        if self._path is None:
            return Kept()
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read, so no order of it holds: %s", self._path, error)
            return Kept()

    def keep(self) -> None:
        """What is in force, whole or not at all, and on the disk when this returns."""
        if self._path is None:
            return
        unfinished = self._path.with_name(self._path.name + ".part")
        try:
            with open(unfinished, "wb") as file:
                file.write(msgspec.json.encode(self._kept))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path)
        except OSError as error:
            log.error("%s cannot be written: what is ordered holds until this process ends: %s", self._path, error)
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

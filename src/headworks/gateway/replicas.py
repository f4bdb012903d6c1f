"""The engines of a gateway: which there are, and which an operator has told to take no more.

The configuration names them; a reload may add some, let some drain (`drain: true`) or leave some out. Beside it an operator may
tell this gateway the same of one, over its admin port: what was told holds until `resume` takes it back or the process ends,
whatever is reloaded meanwhile; of a shared ledger for all its gateways, until `resume` (`shared_orders.py`). Either way the
gate gets a policy that says so, and nothing else decides.

A name belongs to one address for as long as anything is known of it here: what is charged to a name in the ledger is proved
stopped by looking at the engine behind it, so another engine behind the same name would prove what is not so.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from headworks.config.settings import ReplicaSettings, Settings
from headworks.core.policy import Policy, PoolPolicy
from headworks.engines.base import Engine
from headworks.engines.kinds import ENGINES
from headworks.engines.outbox import Outbox
from headworks.gateway import clock

SHOWN = ("state", "breaker", "leaves", "withdrawn", "empty", "requests", "tokens", "unproved", "sample_age_s")
"""What is shown of a replica where replicas are listed."""
DRAIN, RESUME, WITHDRAW = VERBS = ("drain", "resume", "withdraw")


class Untold(Exception):
    """What an operator asked for cannot be done. The text says why."""


class Replicas:
    """One gateway's engines by name, and what it was told about them."""

    def __init__(self, policy: Policy, settings: Settings, outbox: Outbox) -> None:
        self._outbox = outbox
        self.configured = policy
        """As the configuration has it."""
        self.changing = asyncio.Lock()
        """Held by whoever changes it, or tells something beside it."""
        self.engines: dict[str, Engine] = {one.name: _engine(one, outbox) for one in settings.replicas}
        """Those that may be looked at or sent to, withdrawn ones until they are forgotten."""
        self._addresses = {one.name: _address(one) for one in settings.replicas}
        self._told: dict[str, str] = {}
        """By an operator: `drain` or `withdraw`."""

    # by the configuration

    def fixed(self, mine: Settings, wanted: Settings) -> list[str]:
        """What these settings would change that only a restart can."""
        found = ["pools"] if {one.pool for one in mine.replicas} != {one.pool for one in wanted.replicas} else []
        known = [one for one in wanted.replicas if one.name in self.engines]
        moved = [one.name for one in known if self._addresses[one.name] != _address(one)]
        return found + [f"the address of {name} (a replica with another address wants another name)" for name in moved]

    def check(self, settings: Settings) -> None:
        """Whether those that are not known could be made, before anything is changed. Raises `EngineError`."""
        for one in settings.replicas:
            if one.name not in self.engines:
                _engine(one, self._outbox)

    def policy(self) -> Policy:
        """The configuration's policy with what an operator told beside it."""
        policy = self.configured
        if not self._told:
            return policy
        return replace(policy, pools={name: self._pool(pool) for name, pool in policy.pools.items()})

    def _pool(self, pool: PoolPolicy) -> PoolPolicy:
        told, stay = self._told, [one for one in pool.replicas if self._told.get(one.name) != WITHDRAW]
        stay = stay or list(pool.replicas[:1])  # a reload has left none but those: that one drains
        return replace(pool, replicas=tuple(replace(one, drains=one.drains or one.name in told) for one in stay))

    def add_missing(self, settings: Settings, policy: Policy) -> list[str]:
        """Engines for those that the policy names and that are not known, or were forgotten. Returns their names."""
        named = {one.name for pool in policy.pools.values() for one in pool.replicas}
        missing = [one for one in settings.replicas if one.name in named and one.name not in self.engines]
        for one in missing:
            self.engines[one.name] = _engine(one, self._outbox)
            self._addresses[one.name] = _address(one)
        return [one.name for one in missing]

    # by an operator

    def tell(self, verb: str, name: str) -> None:
        """Note what an operator asks for. Raises `Untold`."""
        pools = self.configured.pools
        pool = next((pool for pool in pools.values() if any(one.name == name for one in pool.replicas)), None)
        if pool is None or pool.spill is not None:
            known = ", ".join(one.name for pool in pools.values() if pool.spill is None for one in pool.replicas)
            raise Untold(f"The configuration names no replica {name}. It names {known}.")
        if verb == RESUME:
            if self._told.pop(name, None) is None:
                drains = any(one.name == name and one.drains for one in pool.replicas)
                raise Untold(f"{name} drains by the configuration." if drains else f"{name} was not told to drain.")
            return
        if verb == WITHDRAW and all(one.name == name or self._told.get(one.name) == WITHDRAW for one in pool.replicas):
            raise Untold(
                f"{name} is the last replica of its pool: it can be drained, and withdrawn with its pool by a restart."
            )
        self._told[name] = verb

    def heard(self, verb: str, name: str) -> None:
        """Another gateway of this ledger was told."""
        if verb == RESUME:
            self._told.pop(name, None)
        else:
            self._told[name] = verb

    def shown(self, snapshot: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Every replica there is, how it is, and what was told of it."""
        return {
            name: {"pool": pool_name, "told": self._told.get(name, ""), **{key: one[key] for key in SHOWN}}
            for pool_name, pool in snapshot["pools"].items()
            for name, one in pool["replicas"].items()
        }


def _engine(replica: ReplicaSettings, outbox: Outbox) -> Engine:
    key = replica.api_key.reveal() if replica.api_key is not None else None
    return ENGINES[replica.engine](replica.name, replica.url, clock.now_s, key, ca=replica.ca, outbox=outbox)


def _address(replica: ReplicaSettings) -> tuple[object, ...]:
    """What a connection to it was made with."""
    return replica.url, replica.engine, replica.api_key, replica.compute_url, replica.ca

"""Which pool serves which model: from the configuration, or from what the engines said they serve."""

from __future__ import annotations

import msgspec

from headworks.core.policy import Policy, PoolPolicy
from headworks.core.types import Capacity
from headworks.gateway.keys import Identity

NEVER = "1970-01-01T00:00:00Z"
"""When a model was made: nobody here knows."""


class Models:
    """The one look-up from a model's name to its pool. A name is a dictionary key here, never part of a URL."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._found: dict[str, Capacity] = {}
        self._pools: dict[str, str] = {}
        self._routes: dict[str, tuple[str, ...]] = {}
        """By pool, those that all of its engines have; empty where one has not said."""
        self.context_tokens: int | None = None
        """The largest context any engine has told; None before."""
        self._rebuild()

    def change_policy(self, policy: Policy) -> None:
        self._policy = policy
        self._rebuild()

    def described(self, capacity: Capacity) -> None:
        """An engine said what it serves."""
        self._found[capacity.replica] = capacity
        self._rebuild()

    def _rebuild(self) -> None:
        pools: dict[str, str] = {}
        for name, pool in self._policy.pools.items():
            if pool.spill is not None:  # nobody asks for it by name
                continue
            served = [self._found[replica.name].models for replica in pool.replicas if replica.name in self._found]
            for model in pool.models or [model for models in served for model in models]:
                pools.setdefault(model, name)
        self._pools = pools
        self._untold = next((name for name, pool in self._policy.pools.items() if self._is_untold(pool)), None)
        known = [
            self._found[one.name]
            for pool in self._policy.pools.values()
            if pool.spill is None
            for one in pool.replicas
            if one.name in self._found
        ]
        contexts = [capacity.context_tokens for capacity in known if capacity.context_tokens]
        self.context_tokens = max(contexts, default=None)
        self._routes = {name: _common_routes(self._told(pool)) for name, pool in self._policy.pools.items()}

    def of_pool(self, name: str) -> list[str]:
        """What a pool serves: as it is configured, or as its engines said."""
        pool = self._policy.pools.get(name)
        if pool is None:
            return []
        found = [model for one in pool.replicas if one.name in self._found for model in self._found[one.name].models]
        return list(pool.models or found)

    def _is_untold(self, pool: PoolPolicy) -> bool:
        """Its engines would say what it serves, and none has: whoever asks for a model nobody knows may mean one of its."""
        return pool.spill is None and not pool.models and not any(one.name in self._found for one in pool.replicas)

    def _told(self, pool: PoolPolicy) -> list[tuple[str, ...]]:
        return [self._found[one.name].routes for one in pool.replicas if one.name in self._found]

    def missing(self, pool: str, model: str, route: str) -> str:
        """What is not there, and what is; empty where its engines have that route, or have not said which they have."""
        routes = self._routes.get(pool)
        if not routes or route in routes:
            return ""
        return f"{route} for {model[:128]}, whose engines have {', '.join(routes)}"

    def capacity(self, replica: str) -> Capacity | None:
        """What that engine said, or None."""
        return self._found.get(replica)

    def names(self) -> set[str]:
        """All models there are."""
        return set(self._pools)

    def pool(self, model: str, identity: Identity) -> str | None:
        """The pool, or None if there is no such model for this tenant and this key: from outside both look the same."""
        policy = self._policy.tenants.get(identity.tenant)
        if policy is None:  # taken out by a reload while the request was being read
            return None
        if identity.models is not None and model not in identity.models:
            return None
        return self._pools.get(model, self._untold) if policy.models is None or model in policy.models else None

    def pools(self, identity: Identity) -> dict[str, str]:
        """The pools this key may use, each with a model of it."""
        found = [(self.pool(name, identity), name) for name in self._pools]
        return {pool: name for pool, name in reversed(found) if pool is not None}

    def listing(self, identity: Identity, anthropic: bool = False) -> bytes:
        """The body of GET /v1/models: only what this key may use, as OpenAI writes it or as Anthropic does."""
        names = [name for name in self._pools if self.pool(name, identity) is not None]
        if anthropic:
            cards = [{"type": "model", "id": name, "display_name": name, "created_at": NEVER} for name in names]
            first, last = (names[0], names[-1]) if names else (None, None)
            return msgspec.json.encode({"data": cards, "has_more": False, "first_id": first, "last_id": last})
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "headworks"} for name in names]
        return msgspec.json.encode({"object": "list", "data": rows})


def _common_routes(told: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Of what each engine of a pool has: what they all have, as a request may come to any of them."""
    if not told or not all(told):
        return ()
    return tuple(route for route in told[0] if all(route in routes for routes in told))

"""What a tenant and its client may use and have left now, for the headers of every answer (K24)."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.gate import Gate
from headworks.core.policy import Policy
from headworks.gateway.every_answer import Allowance


class Allowances:
    """By the policy of now and the counts of the gate."""

    def __init__(self, gate: Gate, policy: Policy, clock_s: Callable[[], float]) -> None:
        self._gate = gate
        self._clock_s = clock_s
        self.change_policy(policy)

    def change_policy(self, policy: Policy) -> None:
        """Answers from now on go by these limits."""
        self._limited = {
            name
            for name, tenant in policy.tenants.items()
            if tenant.rate is not None
            or tenant.client_rate is not None
            or tenant.active_tokens_max is not None
            or tenant.active_requests_max is not None
        }

    def of(self, tenant: str, client: str) -> Allowance | None:
        """None: nothing limits them."""
        if tenant not in self._limited:
            return None
        requests, tokens = self._gate.left(tenant, client, self._clock_s())
        return Allowance(requests, tokens)

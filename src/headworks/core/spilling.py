"""What may be spent in a day on an entry of `spill` (E5): committed + outstanding + this <= its budget.

It is counted like a tenant's quota and by the same rules (`core/quota.py`): a scope of the ledger, `quota:spill/NAME@DAY`, so
that several requests, gateways and lives of a gateway share one budget. What cannot be afforded is not sent there.
"""

from __future__ import annotations

from headworks.core.policy import INFINITE_S, QuotaPolicy, SpillPolicy
from headworks.core.quota import Quota
from headworks.core.types import Work

TENANT = "spill/"
"""No tenant has such a name."""
SPENT_S = 10.0
"""After the ledger has found it spent, it is not asked again for so long: others spend from it too."""


class Purse:
    """The budget of one entry."""

    __slots__ = ("quota", "spent_s")

    def __init__(self, name: str, policy: SpillPolicy, utc_offset_s: float) -> None:
        given = QuotaPolicy("day", None, policy.nanomoney_per_day_max, "used")
        self.quota = Quota(TENANT + name, given, {policy.model: policy.price}, utc_offset_s)
        self.spent_s = -INFINITE_S
        """When the ledger last had nothing left of it."""

    def change_policy(self, policy: SpillPolicy) -> None:
        """Another budget or price; what has been spent today stays spent."""
        self.quota.policy = QuotaPolicy("day", None, policy.nanomoney_per_day_max, "used")
        self.quota.prices = {policy.model: policy.price}
        self.quota.is_told = False

    def affords(self, work: Work, model: str, now_s: float) -> bool:
        """Whether this may be sent, at what it costs at most."""
        if now_s < self.spent_s + SPENT_S:
            return False
        return all(value <= limit for _, _, value, limit, _, _ in self.quota.rows("", work, model, now_s))

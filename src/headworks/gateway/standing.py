"""How things stand, in plain values: for the admin port's `/admin/snapshot`, and for a tenant that asks about itself (F12).

What runs and waits is the gate's own snapshot. What has been is read from the metrics, as totals since this process began:
rates are what was added between two looks (`looks.py`). Nothing is counted here, so looking costs requests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headworks.core.policy import ClassPolicy, Policy, TenantPolicy
from headworks.core.reasons import REASONS
from headworks.core.types import Decision, Reservation
from headworks.gateway.accounts import Accounts
from headworks.gateway.clock import UtcStamp
from headworks.gateway.metrics import Registry
from headworks.gateway.metrics_table import METRICS
from headworks.gateway.sums import Sums

TTFT_BOUNDS_S = METRICS["ttft_seconds"].buckets
TOKEN_KINDS = ("prompt", "cached", "output", "reserved", "wasted")
OUTCOMES = ("admit", "queue", "refuse")
NOT_RUN = frozenset({"refused", "expired"})
SHOWN_TENANTS_MAX = 200
NOTHING_HELD = {"tokens": 0, "requests": 0, "quota": None}
"""Of a tenant that has not come yet."""
NOBODY = (0, 0)


class Standing:
    """Puts together what the gate, the metrics and the policy know."""

    def __init__(
        self,
        snapshot: Callable[[str | None], dict[str, Any]],
        estimates: Callable[[str], dict[str, dict[str, int | None]]],
        registry: Registry,
        accounts: Accounts,
        troubles: Callable[[], list[str]],
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._estimates = estimates
        self._registry = registry
        self._sums = Sums(registry)
        self._accounts = accounts
        self.troubles = troubles
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._since = UtcStamp().text(wall_s())

    def state(self, policy: Policy, records: Sequence[Reservation] = (), now_ms: int = 0) -> dict[str, Any]:
        """The gate's snapshot and everything that is known beside it. `records`: what the ledger holds charged."""
        snapshot, now_s = self._snapshot(None), self._clock_s()
        tokens, decided = self._sums.total("tokens_total", 3), self._sums.total("decisions_total", 3)
        kept = Kept(
            self._sums.total("requests_total", 1, 3, 4),
            self._sums.total("goodput_total", 1),
            self._sums.counts("ttft_seconds", 1),
        )
        orphans = orphans_of(records, now_ms)
        return {
            **snapshot,
            "at_s": now_s,
            "utc": UtcStamp().text(self._wall_s()),
            "since": self._since,
            "pools": {name: _pool(pool, orphans.get(name, NO_ORPHANS)) for name, pool in snapshot["pools"].items()},
            "tenants": self._tenants(policy, snapshot),
            "classes": _waiting_too(_classes(kept, policy), snapshot),
            "ttft_bounds_s": TTFT_BOUNDS_S,
            "tokens": {f"{kind}_total": tokens.get((kind,), 0) for kind in TOKEN_KINDS},
            "decided": {outcome: {"total": decided.get((outcome,), 0)} for outcome in OUTCOMES},
            "refusals": _refusals(kept.requests),
            "troubles": self.troubles(),
            "decisions": [self._shown(decision, now_s) for decision in self._accounts.latest()],
        }

    def _tenants(self, policy: Policy, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Where there are too many for a screen, those that hold most."""
        held, waiting = snapshot["tenants"], _waiting(snapshot)
        decided = self._sums.total("decisions_total", 0, 3)
        tokens: dict[str, dict[str, int]] = {}
        for (name, kind), count in self._sums.total("tokens_total", 0, 3).items():
            tokens.setdefault(name, {})[kind] = count
        names = list(policy.tenants)
        if len(names) > SHOWN_TENANTS_MAX:
            names.sort(key=lambda name: (-held.get(name, NOTHING_HELD)["tokens"], -waiting.get(name, NOBODY)[0]))
        return {
            name: {
                **held.get(name, NOTHING_HELD),
                "queued_requests": waiting.get(name, NOBODY)[0],
                "queued_tokens": waiting.get(name, NOBODY)[1],
                "tokens_max": policy.tenants[name].active_tokens_max,
                "requests_max": policy.tenants[name].active_requests_max,
                "admitted_total": decided.get((name, "admit"), 0),
                "refused_total": decided.get((name, "refuse"), 0),
                **_tightness(tokens.get(name, {}), self._estimates(name)),
            }
            for name in names[:SHOWN_TENANTS_MAX]
        }

    def _shown(self, decision: Decision, now_s: float) -> dict[str, Any]:
        return {
            "utc": UtcStamp().text(self._wall_s() - (now_s - decision.decided_s)),
            "id": decision.id,
            "tenant": decision.key.tenant,
            "class": decision.service_class,
            "outcome": decision.outcome,
            "reason": decision.reason,
            "tokens": decision.work.tokens,
            "waited_s": decision.waited_s,
        }

    def own(self, policy: Policy, name: str) -> dict[str, Any]:
        """A tenant's limits, what it uses of them now, and how its promises have been kept since this gateway began.

        Everybody may ask, as often as he likes: nothing here looks at other tenants.
        """
        tenant = policy.tenants.get(name) or TenantPolicy(name)  # taken out by a reload while its question was on its way
        tokens = _by(self._registry.counted("tokens_total", name), 3)
        known, counted = self._estimates(name), self._registry.counted
        kept = Kept(
            _by(counted("requests_total", name), 1, 3, 4),
            _by(counted("goodput_total", name), 1),
            _added(self._registry.observed("ttft_seconds", name), 1),
        )
        return {
            "tenant": name,
            "utc": UtcStamp().text(self._wall_s()),
            "since": self._since,
            "limits": {
                "active_tokens_max": tenant.active_tokens_max,
                "active_requests_max": tenant.active_requests_max,
                "queue_requests_max": tenant.queue_requests_max,
                "models": tenant.models,
                "classes": tenant.classes,
            },
            "use": self._snapshot(name),
            "tokens": {kind: tokens.get((kind,), 0) for kind in TOKEN_KINDS},
            "estimates": {**_tightness({kind: count for (kind,), count in tokens.items()}, known), "models": known},
            "ttft_bounds_s": TTFT_BOUNDS_S,
            "classes": {key: value for key, value in _classes(kept, policy).items() if key in tenant.classes},
        }


def obstacles(snapshot: dict[str, Any], policy: Policy, failures: Mapping[str, str]) -> list[str]:
    """What keeps a gateway from taking work, a sentence each. `failures`: what was said when a replica was last looked at."""
    found = [] if snapshot["open"] else ["The ledger does not answer, or has not yet."]
    for name, pool in snapshot["pools"].items():
        if policy.pools[name].spill is None and all(replica["state"] != "ready" for replica in pool["replicas"].values()):
            said = "; ".join(failures.get(replica, "") for replica in pool["replicas"])
            found.append(f"No engine of the pool {name} is ready. {said}".strip())
    return found


def _waiting(snapshot: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Requests and tokens that wait, by tenant, over all pools."""
    found: dict[str, tuple[int, int]] = {}
    for pool in snapshot["pools"].values():
        for flow, line in pool["queue"].items():
            tenant = flow.partition("/")[2]
            requests, tokens = found.get(tenant, (0, 0))
            found[tenant] = requests + line["requests"], tokens + line["tokens"]
    return found


def _waiting_too(classes: dict[str, dict[str, Any]], snapshot: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """With what waits of each, over all pools."""
    for row in classes.values():
        row["queued_requests"] = row["queued_tokens"] = 0
    for pool in snapshot["pools"].values():
        for flow, line in pool["queue"].items():
            row = classes.get(flow.partition("/")[0])  # type: ignore[assignment]
            if row is not None:  # else it was taken out by a reload, and some of it waits still
                row["queued_requests"] += line["requests"]
                row["queued_tokens"] += line["tokens"]
    return classes


def _pool(pool: dict[str, Any], orphans: dict[str, Any]) -> dict[str, Any]:
    """With its engines together: their own figures are sums, memory is the fullest's."""
    replicas = list(pool["replicas"].values())
    ratios = [one["kv_used_ratio"] for one in replicas if one["kv_used_ratio"] is not None]
    engines = {
        "all": len(replicas),
        "ready": sum(one["state"] == "ready" for one in replicas),
        "running": _known_sum([one["running"] for one in replicas]),
        "waiting": _known_sum([one["waiting"] for one in replicas]),
        "kv_used_ratio": max(ratios, default=None),
    }
    return {**pool, "engines": engines, "orphans": orphans}


def _known_sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def orphans_of(records: Sequence[Reservation], now_ms: int) -> dict[str, dict[str, Any]]:
    """By pool: work that is charged and that nobody watches any more, until it is proved to have stopped."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.state != "ORPHANED":
            continue
        for scope, unit, amount in record.charges:
            if unit == "tokens" and scope.startswith("pool:"):
                row = found.setdefault(scope.removeprefix("pool:"), dict(NO_ORPHANS))
                row["requests"] += 1
                row["tokens"] += amount
                row["oldest_s"] = max(row["oldest_s"] or 0.0, (now_ms - record.reserved_ms) / 1000)
    return found


NO_ORPHANS: dict[str, Any] = {"requests": 0, "tokens": 0, "oldest_s": None}


def _refusals(requests: dict[tuple[str, ...], int]) -> dict[str, dict[str, Any]]:
    """Requests that did not run, by reason; those most frequent so far first."""
    totals: dict[str, int] = {}
    for (_, outcome, reason), count in requests.items():
        if outcome in NOT_RUN:
            totals[reason] = totals.get(reason, 0) + count
    return {reason: {"total": total} for reason, total in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))}


def _tightness(tokens: dict[str, int], models: dict[str, dict[str, int | None]]) -> dict[str, float | None]:
    """Who reserves too much and who too little (A10): tokens reserved to those used, and answers that stayed within."""
    used = tokens.get("prompt", 0) + tokens.get("output", 0)
    answers = sum(model["answers"] or 0 for model in models.values())
    missed = sum(model["missed"] or 0 for model in models.values())
    return {
        "reserved_over_used_ratio": tokens.get("reserved", 0) / used if used else None,
        "covered_ratio": 1.0 - missed / answers if answers else None,
    }


class Kept(NamedTuple):
    """How promises were kept: everybody's, or one tenant's."""

    requests: dict[tuple[str, ...], int]
    """By class, outcome and reason."""
    good: dict[tuple[str, ...], int]
    ttft_counts: dict[tuple[str, ...], list[int]]
    """Both by class."""


def _classes(kept: Kept, policy: Policy) -> dict[str, dict[str, Any]]:
    """Each class's promises and how they were kept."""
    found = {name: _nothing(promised) for name, promised in policy.classes.items()}
    for (name, outcome, reason), count in kept.requests.items():
        row = found.get(name)
        if row is not None:
            row["arrivals_total"] += count
            row["completed_total"] += count if outcome == "completed" else 0
            row["refused_total"] += count if outcome in NOT_RUN else 0
            row["refused_for_own_limits_total"] += count if _is_own(reason) else 0
    for name, row in found.items():
        row["good_total"] = kept.good.get((name,), 0)
        row["ttft_counts"] = kept.ttft_counts.get((name,), row["ttft_counts"])
    for row in found.values():
        counted = row["arrivals_total"] - row["refused_for_own_limits_total"]
        row["good_ratio"] = row["good_total"] / counted if counted > 0 else None
    return found


def _nothing(promised: ClassPolicy) -> dict[str, Any]:
    """A class nobody has asked for anything in."""
    return {
        "promises": {"ttft_s": promised.ttft_slo_s, "tpot_s": promised.tpot_slo_s, "e2e_s": promised.e2e_slo_s},
        "arrivals_total": 0,
        "completed_total": 0,
        "refused_total": 0,
        "refused_for_own_limits_total": 0,
        "good_total": 0,
        "good_ratio": None,
        "ttft_counts": [0] * (len(TTFT_BOUNDS_S) + 1),
    }


def _is_own(reason: str) -> bool:
    """Refused for a limit of its tenant or client: no promise was broken there."""
    return reason in REASONS and REASONS[reason].scope in ("tenant", "client")


def _added(series: dict[tuple[str, ...], list[int]], place: int) -> dict[tuple[str, ...], list[int]]:
    """Observations by bucket, added up by the label at this place."""
    total: dict[tuple[str, ...], list[int]] = {}
    for labels, counts in series.items():
        before = total.get((labels[place],))
        added = counts if before is None else [one + other for one, other in zip(before, counts, strict=True)]
        total[labels[place],] = added
    return total


def _by(series: dict[tuple[str, ...], float], *places: int) -> dict[tuple[str, ...], int]:
    """Series added up by the labels at these places."""
    total: dict[tuple[str, ...], int] = {}
    for labels, value in series.items():
        name = tuple(labels[place] for place in places)
        total[name] = total.get(name, 0) + round(value)
    return total

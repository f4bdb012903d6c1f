"""What observing has shown (F3): who would have been refused, which limits the traffic proposes, and what became of copies.

Everything is read from the decision log. The proposed limits (`proposals.py`) are tried together by the code of `headworks
plan`, under which refusals change what comes after them; its control says whether that can be relied on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from headworks.core.policy import MIRROR, ClassPolicy
from headworks.sim.report import quantile
from headworks.tools.decision_log import Life
from headworks.tools.log_lines import Arrival, Ended
from headworks.tools.plan import plan
from headworks.tools.proposals import Load, Proposal, Proposals, enforcing, proposals

NOT_RUN = frozenset({"refused", "expired"})
ANONYMOUS = "anonymous"
"""The tenant of a gateway without tenants: limits of its own cannot be written down for it."""
INDENT = "  "
COMMENT_AT = 44
IN_SECTIONS = (".rate.tokens_per_s", ".rate.requests_per_s", ".quota.tokens")
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
NOT_NAMES = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
Values = dict[str, Any]


def observed(lives: Sequence[Life], refused_ratio: float, tries: bool = True) -> Values:
    """All of it, in plain values. `tries`: the proposals are tried on the log, which takes as long as a plan."""
    tenants = {one.ended.key.tenant for life in lives for one in life.arrivals} - {MIRROR}
    made = proposals(lives, refused_ratio, named_tenants=tenants != {ANONYMOUS})
    return {
        "log": {
            "lives": len(lives),
            "from_utc": min(life.began_utc for life in lives),
            "seconds": round(sum(life.ended_s - life.began_s for life in lives), 3),
            "arrivals": sum(len(life.arrivals) for life in lives),
        },
        "refused_ratio": refused_ratio,
        "decided": _decided(lives),
        "proposals": msgspec.to_builtins(made.found),
        "not_proposed": msgspec.to_builtins(made.not_found),
        "yaml": as_yaml(made),
        "tried": _tried(lives, made) if tries else None,
        "copies": _copies(lives),
    }


def _decided(lives: Sequence[Life]) -> list[Values]:
    """By tenant and class, how many were refused or would have been, and for which reasons."""
    groups: dict[tuple[str, str], list[Arrival]] = {}
    for life in lives:
        for one in life.arrivals:
            if one.ended.key.tenant != MIRROR:
                groups.setdefault((one.ended.key.tenant, one.ended.service_class), []).append(one)
    return [
        {
            "tenant": tenant,
            "class": service_class,
            "arrivals": len(its),
            "refused": sum(_is_refused(one) for one in its),
            "ran_all_the_same": sum(bool(one.would_refuse) and one.ended.outcome not in NOT_RUN for one in its),
            "reasons": dict(Counter(_reason(one) for one in its if _is_refused(one)).most_common()),
        }
        for (tenant, service_class), its in sorted(groups.items())
    ]


def _is_refused(one: Arrival) -> bool:
    return bool(one.would_refuse) or one.ended.outcome in NOT_RUN


def _reason(one: Arrival) -> str:
    return one.would_refuse or one.ended.reason


# tried


def _tried(lives: Sequence[Life], made: Proposals) -> Values:
    """What the proposed limits would have refused all together."""
    found = plan(lives, enforcing(lives[-1].policies[-1][1], made))
    return {
        "control": found["control"],
        "holds": found["holds"],
        "tenants": {
            name: {
                "arrivals": figures["arrivals"],
                "refused": figures["plan"]["refused"],
                "in_time": figures["plan"]["in_time"],
            }
            for name, figures in found["tenants"].items()
            if name != MIRROR
        },
    }


# to be pasted


def as_yaml(made: Proposals) -> str:
    """The proposals as a part of a configuration, each with where it comes from."""
    lines: list[str] = []
    above: list[str] = []
    for one in made.found:
        *path, name = _place(one.key)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(path, above, strict=False))))
        lines += [f"{INDENT * depth}{_scalar(path[depth])}:" for depth in range(shared, len(path))]
        above, indent = path, INDENT * len(path)
        if path[-1] == "quota":
            lines.append(f"{indent}period: day")
        value = f"{one.value:.2f}".rstrip("0").rstrip(".")
        lines.append(f"{f'{indent}{name}: {value}':<{COMMENT_AT}}  # {source(one)}")
    return "".join(f"{line}\n" for line in lines)


def _place(key: str) -> list[str]:
    """Where it stands. The name of a tenant or a pool may have points in it, that of a limit has none but these."""
    kind, _, rest = key.partition(".")
    return [kind, *rest.rsplit(".", 2 if rest.endswith(IN_SECTIONS) else 1)]


def _scalar(name: str) -> str:
    """As a key of YAML. A name that reads as a number, a date, a truth or nothing would be one."""
    return name if PLAIN.fullmatch(name) and name.lower() not in NOT_NAMES else f'"{name}"'


def source(one: Proposal) -> str:
    """What a proposal rests on, in words."""
    share = 100.0 * one.would_refuse / one.arrivals if one.arrivals else 0.0
    said = f"{one.would_refuse:,} of {one.arrivals:,} ({share:.1f} %) would have been refused"
    return f"{said}; the most was {one.most:,g} {one.unit}; memory {_full(one.beyond)} then, {_full(one.within)} else"


def _full(load: Load) -> str:
    return "unknown" if load.kv_ratio is None else f"{load.kv_ratio:.2f}"


# copies


def _copies(lives: Sequence[Life]) -> list[Values]:
    """By the pool that got them: of what was refused, or would have been, and of the rest."""
    ends = {one.ended.id: one.ended for life in lives for one in life.arrivals if one.ended.key.tenant == MIRROR}
    groups: dict[str, dict[str, list[tuple[ClassPolicy, Ended]]]] = {}
    left_out: dict[str, Counter[str]] = {}
    for life in lives:
        originals = {one.ended.id: one for one in life.arrivals}
        for told in life.copies:
            counts, its = (
                left_out.setdefault(told.pool, Counter()),
                groups.setdefault(told.pool, {"refused": [], "admitted": []}),
            )
            original, copy = originals.get(told.id), ends.get(told.copy)
            if not told.copy:
                counts[told.left_out] += 1
            elif original is not None and copy is not None:
                promise = life.policy_at(original.at_s).class_of(original.ended.service_class)
                its["refused" if _is_refused(original) else "admitted"].append((promise, copy))
    return [
        {
            "pool": pool,
            "left_out": dict(left_out[pool]),
            **{name: _became(copies) for name, copies in its.items()},
        }
        for pool, its in sorted(groups.items())
    ]


def _became(copies: Iterable[tuple[ClassPolicy, Ended]]) -> Values:
    """What became of copies, by the promises of their originals' classes."""
    copies = list(copies)
    first_s = [copy.first_byte_s - copy.arrived_s for _, copy in copies if copy.first_byte_s is not None]
    whole_s = [copy.stopped_s - copy.arrived_s for _, copy in copies if copy.outcome == "completed"]
    return {
        "copies": len(copies),
        "in_time": sum(_is_in_time(promise, copy) for promise, copy in copies),
        "outcomes": dict(Counter(copy.outcome for _, copy in copies).most_common()),
        "ttft_p50_s": _rounded(quantile(first_s, 0.50)),
        "ttft_p95_s": _rounded(quantile(first_s, 0.95)),
        "e2e_p95_s": _rounded(quantile(whole_s, 0.95)),
    }


def _is_in_time(promise: ClassPolicy, copy: Ended) -> bool:
    """It was completed within what its original's class promises of the first token and of the whole answer."""
    if copy.outcome != "completed" or copy.first_byte_s is None:
        return False
    first_s, whole_s = copy.first_byte_s - copy.arrived_s, copy.stopped_s - copy.arrived_s
    is_first = promise.ttft_slo_s is None or first_s <= promise.ttft_slo_s
    return is_first and (promise.e2e_slo_s is None or whole_s <= promise.e2e_slo_s)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

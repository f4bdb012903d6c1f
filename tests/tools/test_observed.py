"""Limits that a log proposes, who would have been refused, and what became of copies (F3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from logged_story import logged, overload

from headworks.core.events import ReplicaSampled
from headworks.core.policy import MIRROR, ClassPolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import ReplicaSample, RequestKey, Usage, Work
from headworks.tools.decision_log import Life, lives
from headworks.tools.log_lines import Arrival, Asked, Copied, Ended
from headworks.tools.observed import observed
from headworks.tools.proposals import Load, Proposal, enforcing, proposals

ASKED = Asked(100, None, 200, 0, 1, True, False, False, 0, None, 55.0)
POLICY = Policy(
    "v",
    1,
    {"interactive": ClassPolicy("interactive", ttft_slo_s=0.6, e2e_slo_s=5.0)},
    {"acme": TenantPolicy("acme", observe=True), "batchco": TenantPolicy("batchco")},
    {"main": PoolPolicy("main", ("m",), (ReplicaPolicy("main/0"),))},
)


def arrival(number: int, at_s: float, runs_s: float = 3.0, would_refuse: str = "", **fields: Any) -> Arrival:
    """300 tokens reserved, 180 used, its first byte after half a second."""
    name = fields.pop("name", f"r{number}")
    ended = Ended(
        id=name,
        key=RequestKey(fields.pop("tenant", "acme"), name),
        outcome=fields.pop("outcome", "completed"),
        reason="",
        service_class="interactive",
        model="m",
        pool=fields.pop("pool", "main"),
        client="acme/1",
        arrived_s=at_s,
        sent_s=at_s,
        first_byte_s=at_s + fields.pop("first_s", 0.5),
        ended_s=at_s + runs_s,
        work=Work(300, 100, 1, 0.0, 304, 200),
        usage=Usage(80, 0, 100, 2.0, "stop", True),
        evidence="E1",
        unconfirmed_s=None,
        in_slo=True,
        replica="main/0",
        asked=ASKED,
    )
    return Arrival(at_s, ended, would_refuse=would_refuse)


def life(*arrivals: Arrival, **fields: Any) -> Life:
    looks = [
        (at_s, ReplicaSampled(ReplicaSample("main/0", "i", at_s, at_s, (0,), running, 0, kv_ratio, None, 0)))
        for at_s, running, kv_ratio in fields.pop("looks", ())
    ]
    made = Life("g", "b", 0.0, 0.0, True, "2026-11-30T00:00:00Z", policies=[(0.0, POLICY)], facts=looks, **fields)
    made.arrivals = list(arrivals)
    return made


def ten() -> Life:
    """One a second for eight seconds, of which three run at once; then two at one instant. The engine is full at the end."""
    steady = [arrival(number, 10.0 + number) for number in range(8)]
    return life(*steady, arrival(8, 18.0), arrival(9, 18.0), looks=[(9.0, 2, 0.25), (17.5, 4, 0.75)])


def found(made: Life, refused_ratio: float) -> dict[str, Proposal]:
    return {one.key: one for one in proposals([made], refused_ratio).found}


def test_F3_a_limit_is_what_all_but_the_wished_share_of_arrivals_stayed_within() -> None:
    limits = found(ten(), 0.1)
    requests, tokens = limits["tenants.acme.active_requests_max"], limits["tenants.acme.active_tokens_max"]
    assert (requests.value, requests.would_refuse, requests.arrivals, requests.most) == (3, 1, 10, 4)
    assert (tokens.value, tokens.would_refuse, tokens.most) == (900, 1, 1_200)
    assert limits["pools.main.active_tokens_max"].value == 3 * 304


def test_F3_beside_a_limit_stands_how_full_the_engines_were_when_it_would_have_refused() -> None:
    requests = found(ten(), 0.1)["tenants.acme.active_requests_max"]
    assert requests.beyond == Load(1, 0.75, 4.0)
    assert requests.within == Load(9, round((8 * 0.25 + 0.75) / 9, 3), round((8 * 2 + 4) / 9, 3))


def test_F3_a_rate_is_the_smallest_whose_bucket_lets_all_but_that_share_in() -> None:
    """Sixty at once: a bucket of ten seconds lets them all in at 6 a second, and nine tenths of them at 5.4."""
    made = life(*(arrival(number, 10.0) for number in range(60)))
    assert found(made, 0.0)["tenants.acme.rate.requests_per_s"].value == 6.0
    assert found(made, 0.1)["tenants.acme.rate.requests_per_s"].value == 5.4
    assert found(made, 0.0)["tenants.acme.rate.tokens_per_s"].value == 60 * 300 / 10


def test_F3_a_quota_is_proposed_of_a_whole_day_and_of_nothing_less() -> None:
    short = proposals([ten()], 0.1)
    assert [(one.key, one.why) for one in short.not_found] == [
        ("tenants.acme.quota.tokens", "the log has no whole day in it")
    ]  # fmt: skip
    days = [arrival(number, 3_600.0 * number) for number in range(60)]
    quota = found(life(*days), 0.125)["tenants.acme.quota.tokens"]
    assert (quota.value, quota.would_refuse, quota.arrivals, quota.unit) == (21 * 180, 3, 24, "tokens a day")


def test_F3_who_would_have_been_refused_is_told_by_tenant_class_and_reason() -> None:
    full = "tenant_capacity_exceeded"
    made = life(arrival(0, 1.0, would_refuse=full), arrival(1, 2.0), arrival(2, 3.0, outcome="refused", would_refuse=full))
    (acme,) = observed([made], 0.1, tries=False)["decided"]
    assert acme == {
        "tenant": "acme",
        "class": "interactive",
        "arrivals": 3,
        "refused": 2,
        "ran_all_the_same": 1,
        "reasons": {full: 2},
    }


def test_F3_what_became_of_copies_is_told_apart_for_what_was_refused() -> None:
    copy: dict[str, Any] = {"tenant": MIRROR, "pool": "shadow"}
    made = life(
        arrival(0, 1.0, would_refuse="queue_delay_exceeded", outcome="refused"),
        arrival(1, 2.0),
        arrival(2, 3.0),
        arrival(3, 1.0, name="c0", **copy),
        arrival(4, 2.0, name="c1", first_s=0.7, **copy),
        arrival(5, 3.0, name="c2", outcome="failed", **copy),
    )
    made.copies = [Copied(f"r{n}", f"c{n}", "shadow", "") for n in range(3)] + [Copied("r1", "", "shadow", "no_room")]
    (shadow,) = observed([made], 0.1, tries=False)["copies"]
    assert (shadow["pool"], shadow["left_out"]) == ("shadow", {"no_room": 1})
    refused, admitted = shadow["refused"], shadow["admitted"]
    assert (refused["copies"], refused["in_time"], refused["outcomes"]) == (1, 1, {"completed": 1})
    assert (admitted["copies"], admitted["in_time"]) == (2, 0), "one was late by its original's promise, one failed"
    assert (refused["ttft_p95_s"], admitted["ttft_p95_s"], refused["e2e_p95_s"]) == (0.5, 0.7, 3.0)


def test_F3_what_is_proposed_can_be_pasted_as_it_stands() -> None:
    text = observed([ten()], 0.1, tries=False)["yaml"]
    assert yaml.safe_load(text) == {
        "tenants": {
            "acme": {"active_tokens_max": 900, "active_requests_max": 3, "rate": {"tokens_per_s": 110, "requests_per_s": 0.5}}
        },
        "pools": {"main": {"active_tokens_max": 912, "active_requests_max": 3}},
    }
    said = "1 of 10 (10.0 %) would have been refused; the most was 4 requests; memory 0.75 then, 0.31 else"
    assert "active_requests_max: 3" in text and said in text


@pytest.mark.parametrize(
    "name", ["12", "1.5", "1e5", "0x1f", "true", "No", "null", "2026-11-30", "a.b", "eu.rate", "x-1_y", "a.quota"]
)
def test_F3_whatever_a_tenant_is_called_its_limits_are_pasted_under_its_name(name: str) -> None:
    made = life(arrival(0, 10.0, tenant=name, pool=name), arrival(1, 90_000.0, tenant=name, pool=name))
    limits = yaml.safe_load(observed([made], 0.1, tries=False)["yaml"])
    assert list(limits["tenants"]) == list(limits["pools"]) == [name]
    assert limits["tenants"][name]["active_requests_max"] == limits["pools"][name]["active_requests_max"] == 1
    assert limits["tenants"][name]["rate"]["requests_per_s"] > 0


def test_F3_a_tenant_that_asked_once_is_not_proposed_to_be_shut_out() -> None:
    limits = found(life(arrival(0, 10.0)), 0.1)
    assert limits["tenants.acme.rate.requests_per_s"].value == 0.01
    assert limits["tenants.acme.rate.requests_per_s"].would_refuse == 0
    assert limits["tenants.acme.rate.tokens_per_s"].value == 30.01


def test_F3_all_of_them_are_enforced_when_they_are_tried() -> None:
    policy = enforcing(POLICY, proposals([ten()], 0.1))
    acme = policy.tenants["acme"]
    assert (acme.observe, acme.active_tokens_max, acme.active_requests_max) == (False, 900, 3)
    assert acme.rate is not None and acme.rate.requests_per_s == 0.5
    assert policy.tenants["batchco"].rate is None, "nothing of it is in the log"
    assert policy.pools["main"].active_tokens_max == 912


def test_F3_an_observed_overload_proposes_limits_that_the_log_itself_tries(tmp_path: Path) -> None:
    """A simulated gateway that refuses nobody: what is proposed is tried on its log, whose own outcomes are the same again."""
    story = overload()
    logged(tmp_path, story)
    read = lives(tmp_path)
    made = observed(read, 0.05)
    assert made["tried"]["holds"] and made["tried"]["control"]["reproduced_ratio"] >= 0.99
    for one in made["proposals"]:
        assert one["would_refuse"] <= 0.05 * one["arrivals"] + 1, one["key"]

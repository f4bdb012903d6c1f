"""Looks: versions, and rates over what was added between two of them (F9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headworks.gateway.looks import KEPT_MAX, Looks, quantile_s

BOUNDS_S = [0.5, 1.0, 2.0]


class Said:
    """A gateway that says what it is told to say. Totals are those since its start."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.admitted = self.refused = self.good = self.arrivals = self.output = self.wasted = 0
        self.tenants = ["acme"]
        self.asked = 0

    def state(self) -> dict[str, Any]:
        self.asked += 1
        tenant = {"admitted_total": self.admitted, "refused_total": self.refused}
        of_class = {
            "arrivals_total": self.arrivals,
            "refused_total": self.refused,
            "refused_for_own_limits_total": self.refused,
            "good_total": self.good,
            "ttft_counts": [self.good, 0, 0, 0],
        }
        return {
            "at_s": self.at_s,
            "ttft_bounds_s": BOUNDS_S,
            "tenants": {name: dict(tenant) for name in self.tenants},
            "classes": {"interactive": of_class},
            "decided": {"admit": {"total": self.admitted}},
            "refusals": {"queue_full": {"total": self.refused}} if self.refused else {},
            "tokens": {"output_total": self.output, "wasted_total": self.wasted},
        }


def look(looks: Looks) -> dict[str, Any]:
    return dict(json.loads(looks.look()[1]))


def test_F9_rates_are_what_was_added_between_two_looks() -> None:
    said = Said()
    looks = Looks(said.state)
    said.admitted, said.refused, said.good, said.arrivals, said.output, said.wasted = 1_000, 50, 900, 1_050, 9_000, 900
    first = look(looks)
    assert (first["version"], first["span_s"], first["tenants"]["acme"]["admitted_per_s"]) == (1, 0.0, None)
    assert (first["classes"]["interactive"]["ttft_p95_s"], first["tokens"]["wasted_ratio"]) == (None, None)
    said.at_s = 104.0
    said.admitted, said.refused, said.good, said.arrivals, said.output, said.wasted = 1_020, 58, 918, 1_078, 9_400, 1_000
    now = look(looks)
    assert (now["version"], now["span_s"]) == (2, 4.0)
    assert (now["tenants"]["acme"]["admitted_per_s"], now["tenants"]["acme"]["refused_per_s"]) == (5.0, 2.0)
    assert (now["decided"]["admit"]["per_s"], now["refusals"]["queue_full"]["per_s"]) == (5.0, 2.0)
    # 28 came, 8 of them were refused for their tenant's own limits: 18 of 20 were good
    interactive = now["classes"]["interactive"]
    assert (interactive["good_lately_ratio"], interactive["good_per_s"], interactive["arrivals_per_s"]) == (0.9, 4.5, 7.0)
    assert interactive["ttft_p95_s"] == pytest.approx(0.475)  # all 18 between 0 and 0.5 s
    assert (now["tokens"]["output_per_s"], now["tokens"]["wasted_per_s"], now["tokens"]["wasted_ratio"]) == (100.0, 25.0, 0.25)


def test_F9_a_reason_that_is_new_had_nothing_before_and_a_tenant_that_was_not_looked_at_has_no_rate() -> None:
    said = Said()
    looks = Looks(said.state)
    look(looks)
    said.at_s, said.refused, said.tenants = 102.0, 6, ["acme", "of-long-ago"]
    now = look(looks)
    assert now["refusals"]["queue_full"]["per_s"] == 3.0
    assert now["tenants"]["acme"]["refused_per_s"] == 3.0
    assert now["tenants"]["of-long-ago"]["refused_per_s"] is None


def test_F9_a_rate_goes_back_ten_seconds_however_often_one_looks() -> None:
    said = Said()
    looks = Looks(said.state)
    for number in range(4_000):
        said.at_s, said.admitted = 100.0 + number / 100, number
        now = look(looks)
    assert now["span_s"] == pytest.approx(10.0, abs=0.2)
    assert now["tenants"]["acme"]["admitted_per_s"] == pytest.approx(100.0)


def test_F9_what_was_seen_long_ago_says_nothing_of_now() -> None:
    said = Said()
    looks = Looks(said.state)
    look(looks)
    said.at_s, said.admitted = 100.0 + 3_600.0, 9
    assert look(looks)["tenants"]["acme"]["admitted_per_s"] is None
    said.at_s, said.admitted = said.at_s + 2.0, 19
    assert look(looks)["tenants"]["acme"]["admitted_per_s"] == 5.0


def test_F9_the_last_looks_can_be_had_once_more_and_no_others() -> None:
    said = Said()
    looks = Looks(said.state)
    made = dict(looks.look() for _ in range(KEPT_MAX + 3))
    assert [looks.kept(version) for version in (1, 2, 3)] == [None, None, None]
    assert [looks.kept(version) for version in range(4, KEPT_MAX + 4)] == [made[version] for version in range(4, KEPT_MAX + 4)]
    assert looks.kept(KEPT_MAX + 4) is None
    assert said.asked == KEPT_MAX + 3, "what is kept is not looked at again"


@pytest.mark.parametrize(
    ("counts", "expected_s"),
    [([0, 0, 0, 0], None), ([100, 0, 0, 0], 0.475), ([90, 10, 0, 0], 0.75), ([0, 0, 0, 5], 2.0), ([94, 0, 6, 0], 1.1666666)],
)
def test_F9_a_quantile_lies_on_a_line_in_its_bucket(counts: list[int], expected_s: float | None) -> None:
    assert quantile_s(BOUNDS_S, counts, 0.95) == (expected_s if expected_s is None else pytest.approx(expected_s))

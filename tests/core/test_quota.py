"""Periods of UTC and what is billed in them."""

from __future__ import annotations

import datetime
from random import Random

import pytest

from headworks.core.policy import PricePolicy, QuotaPolicy
from headworks.core.quota import Quota, billed, period_of
from headworks.core.types import Charge, Usage, Work

WORK = Work(1_000, 400, 1, 0.0, 1_008, 600)
PRICE = PricePolicy(prompt_per_mtoken=0.10, cached_per_mtoken=0.02, output_per_mtoken=0.40)


def at(*date: int) -> float:
    return datetime.datetime(*date, tzinfo=datetime.UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("kind", "name", "begins", "ends"),
    [
        ("hour", "hour-2028-02-29T23", (2028, 2, 29, 23), (2028, 3, 1)),
        ("day", "day-2028-02-29", (2028, 2, 29), (2028, 3, 1)),
        ("week", "week-2028-02-28", (2028, 2, 28), (2028, 3, 6)),
        ("month", "month-2028-02", (2028, 2, 1), (2028, 3, 1)),
    ],
)
def test_A2_periods_are_those_of_utc(kind: str, name: str, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
    found = period_of(kind, at(2028, 2, 29, 23, 59))
    assert (found.name, found.begins_s, found.ends_s) == (name, at(*begins), at(*ends))
    assert period_of(kind, at(*ends) - 0.001) == found
    assert period_of(kind, at(*ends)).begins_s == found.ends_s


def test_A2_any_instant_lies_in_its_month_and_week() -> None:
    seed = 20261130
    random = Random(seed)
    for _ in range(200):
        utc_s = random.random() * at(2101, 1, 1)
        date = datetime.datetime.fromtimestamp(utc_s, datetime.UTC)
        assert period_of("month", utc_s).name == f"month-{date:%Y-%m}", f"seed {seed}"
        assert period_of("day", utc_s).name == f"day-{date:%Y-%m-%d}", f"seed {seed}"
        monday = date.date() - datetime.timedelta(days=date.weekday())
        assert period_of("week", utc_s).name == f"week-{monday}", f"seed {seed}"


def test_F7_money_is_counted_in_billionths_by_what_was_read_cached_and_written() -> None:
    usage = Usage(400, 100, 50, 0.0, "stop", True)
    assert billed(usage, WORK, PRICE, reserved=False) == (450, 300 * 100 + 100 * 20 + 50 * 400)
    assert billed(usage, WORK, PRICE, reserved=True) == (1_000, 400 * 100 + 600 * 400)
    assert billed(None, WORK, PRICE, reserved=False) == (0, 0), "nobody knows of anything it used"


def test_A2_committed_and_outstanding_and_asked_are_one_sum_and_stand_apart() -> None:
    quota = Quota("acme", QuotaPolicy("day", tokens=2_500), {"m": PRICE}, 0.0)
    quota.turn(10.0)
    charge = quota.take(WORK, "m")
    assert charge.charges() == (("quota:acme@day-1970-01-01", "tokens", 1_000),)
    assert quota.rows("tenant:acme", WORK, "m", 10.0)[0][2:5] == (2_000, 2_500, "tokens a day")
    assert charge.bill(Usage(400, 0, 50, 0.0, "stop", True), WORK, "m", False)[0][2] == 450
    charge.close()
    assert (quota.committed_tokens, quota.outstanding_tokens) == (450, 0)
    assert quota.committed() == [Charge("quota:acme@day-1970-01-01", "tokens", 450)]


def test_A2_a_new_period_begins_empty_and_the_old_one_does_not_reach_into_it() -> None:
    quota = Quota("acme", QuotaPolicy("hour", tokens=2_500), {}, 0.0)
    quota.turn(3_599.0)
    charge = quota.take(WORK, "m")
    quota.turn(3_600.0)
    assert (quota.period, quota.committed_tokens, quota.outstanding_tokens) == ("hour-1970-01-01T01", 0, 0)
    charge.bill(Usage(400, 0, 50, 0.0, "stop", True), WORK, "m", False)
    charge.close()
    assert (quota.committed_tokens, quota.outstanding_tokens) == (0, 0)


def test_A2_what_the_journal_says_of_another_period_is_not_taken() -> None:
    quota = Quota("acme", QuotaPolicy("hour", tokens=2_500, nanomoney=10**9), {}, 0.0)
    quota.turn(0.0)
    quota.read([Charge("quota:acme@hour-1970-01-01T00", "tokens", 7), Charge("quota:acme@hour-1970-01-01T01", "tokens", 9)])
    quota.read([Charge(quota.scope, "nanomoney", 5), Charge("quota:other@hour-1970-01-01T00", "tokens", 11)])
    assert (quota.committed_tokens, quota.committed_nanomoney) == (7, 5)

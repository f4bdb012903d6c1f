"""The counters' shortcut from one charge to the next never leads to a wrong counter."""

from __future__ import annotations

from headworks.core.book_counters import COUNTERS_SWEPT_AT, Counters

ONE = (("tenant:a", "tokens", 1), ("pool:p", "tokens", 1), ("replica:p/0", "tokens", 1))
OTHER = (("tenant:b", "tokens", 10), ("pool:p", "tokens", 10), ("replica:p/1", "tokens", 10))
TURNED = (("pool:p", "tokens", 100), ("tenant:a", "tokens", 100), ("tenant:a", "requests", 100))


def held(counters: Counters) -> dict[tuple[str, str], int]:
    return {(one.scope, one.unit): one.held for one in counters.all() if one.held}


def test_A3_charges_in_any_order_reach_their_own_counters() -> None:
    counters = Counters()
    taken = [(charges, counters.take(charges)[0]) for charges in (TURNED, ONE, OTHER, ONE, OTHER)]
    assert held(counters) == {
        ("tenant:a", "tokens"): 102,
        ("tenant:a", "requests"): 100,
        ("tenant:b", "tokens"): 20,
        ("pool:p", "tokens"): 122,
        ("replica:p/0", "tokens"): 2,
        ("replica:p/1", "tokens"): 20,
    }
    for charges, found in taken:
        counters.give(charges, found)
    assert held(counters) == {}
    assert counters.underflows == 0


def test_A3_a_swept_counter_is_not_charged_any_more() -> None:
    """Dropped while nothing was held on them, they are found anew, and `all` knows the ones that are charged."""
    counters = Counters()
    counters.give(ONE, counters.take(ONE)[0])
    for number in range(COUNTERS_SWEPT_AT):
        counters.find([(f"session:{number}", "tokens", 0)])
    assert ("tenant:a", "tokens") not in {(one.scope, one.unit) for one in counters.all()}
    counters.take(ONE)
    assert held(counters) == {("tenant:a", "tokens"): 1, ("pool:p", "tokens"): 1, ("replica:p/0", "tokens"): 1}


def test_F3_asking_whether_observed_charges_would_fit_leaves_no_excess_behind() -> None:
    """They always would. What is only asked was never held, so `check` is to notice whoever holds as much."""
    counters = Counters()
    counters.set([("pool:p", "tokens", 100)], ())
    observed = (("observed:p", "tokens", 500), ("pool:p", "tokens", 500))
    for _ in range(2):
        assert counters.lacking(observed) == []
        assert {one.scope: one.excess for one in counters.all() if one.excess} == {}
    taken, _ = counters.take(observed)
    assert {one.scope: one.excess for one in counters.all() if one.excess} == {"pool:p": 500}, "held, for a good reason"
    counters.give(observed, taken)

"""The counters' shortcut from one charge to the next never leads to a wrong counter."""

from __future__ import annotations

import pytest

from headworks.core.book_counters import COUNTERS_SWEPT_AT, STANDING, UNLIMITED, Counter, Counters
from headworks.core.commands import Floor, Shortfall

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


def test_A3_a_sweep_drops_what_nobody_holds_limits_or_speaks_of() -> None:
    counters = Counters()
    counters.set((("pool:p", "tokens", 50),), (Floor("model:m", "tokens", 5, "pool:p", "lent:p"),))
    counters.take((("tenant:held", "tokens", 3),))
    counters.find([("tenant:idle", "tokens", 0)])
    for number in range(COUNTERS_SWEPT_AT - 5):
        counters.find([(f"session:{number}", "tokens", 0)])
    assert len(list(counters.all())) == COUNTERS_SWEPT_AT == 4096
    counters.find([("one", "more", 0)])
    assert [one.scope for one in counters.all()] == ["pool:p", "model:m", "lent:p", "tenant:held", "one"]
    assert counters._sweep_at == 4096


def test_A3_where_much_is_held_the_next_sweep_is_at_twice_that() -> None:
    counters = Counters()
    for number in range(COUNTERS_SWEPT_AT + 1):
        counters.take(((f"tenant:{number}", "tokens", 1),))
    assert (len(list(counters.all())), counters._sweep_at) == (4097, 8192)
    assert counters.held("tenant:0", "tokens") == 1


def limited(limit: int) -> tuple[Counters, Counter]:
    counters = Counters()
    counters.set((("pool:p", "tokens", limit),), ())
    (one,) = counters.find([("pool:p", "tokens", 0)])
    return counters, one


def test_A3_what_is_moved_above_a_limit_is_excess_and_drains() -> None:
    counters, one = limited(10)
    counters.move(("pool:p",), "tokens", 10)
    assert (one.held, one.excess) == (10, 0)
    counters.move(("pool:p",), "tokens", 20)
    assert (one.held, one.excess) == (30, 30)
    counters.move(("pool:p",), "tokens", -5)
    assert (one.held, one.excess) == (25, 30)
    counters.move(("pool:p",), "tokens", -25)
    assert (one.held, counters.underflows) == (0, 0)
    counters.move(("pool:p",), "tokens", -1)
    assert (one.held, counters.underflows) == (-1, 1)


def test_A2_what_is_committed_stays_and_is_excess_above_the_limit_only() -> None:
    counters, one = limited(10)
    counters.commit((("pool:p", "tokens", 10), ("pool:q", "tokens", 4)))
    assert (one.held, one.committed, one.excess, counters.held("pool:q", "tokens")) == (10, 10, 0, 0)
    counters.commit((("pool:p", "tokens", 5),))
    assert (one.held, one.committed, one.excess) == (15, 15, 15)
    counters.set((("pool:p", "tokens", 15),), ())
    assert (one.held, one.excess) == (15, 0), "it is no more than the limit"
    counters.set((("pool:p", "tokens", 14),), ())
    assert (one.held, one.excess) == (15, 15)
    counters.set((), ())
    assert (one.held, one.committed, one.limit, one.excess) == (0, 0, UNLIMITED, 0)
    assert counters.committed("nobody", "tokens") == 0


def test_A11_a_limit_that_is_told_again_by_the_same_policy_forgets_its_excess() -> None:
    counters, one = limited(100)
    counters.take((("pool:p", "tokens", 60),))
    counters.set((("pool:p", "tokens", 50),), ())
    assert one.excess == 60
    counters.set((("pool:p", "tokens", 80),), (), keeps=True)
    assert (one.limit, one.excess) == (80, 0)
    counters.set((("pool:p", "tokens", STANDING),), ())
    assert one.limit == 80
    counters.set((("pool:p", "tokens", 50),), ())
    counters.set((("pool:q", "tokens", 5),), (), keeps=True)
    assert (one.limit, one.excess) == (50, 60), "what is not named stays"


def test_A2_of_the_same_policy_only_the_period_before_the_one_that_is_named_goes() -> None:
    counters = Counters()
    days = [("quota:a@2026-11-28", "tokens", 5), ("quota:a@2026-11-29", "tokens", 6), ("quota:b@2026-11-28", "tokens", 7)]
    counters.set(days, ())
    counters.set([("quota:a@2026-11-29", "tokens", 8)], (), keeps=True)
    assert [counters.limit(scope, unit) for scope, unit, _ in days] == [None, 8, 7]


def floored() -> Counters:
    """Of 100 in a pool 40 are one model's and 30 a tenant's; what the tenant does not use is lent."""
    counters = Counters()
    floors = (Floor("model:m", "tokens", 40, "pool:p"), Floor("reserved:a", "tokens", 30, "pool:p", "lent:p"))
    counters.set((("pool:p", "tokens", 100),), floors)
    return counters


def test_B10_floors_leave_no_trace_when_they_are_taken_back() -> None:
    counters = floored()
    pool, model, own, lent = counters.find([(scope, "tokens", 0) for scope in ("pool:p", "model:m", "reserved:a", "lent:p")])
    counters.take((("model:m", "tokens", 10), ("pool:p", "tokens", 10)))
    assert [(one.floor, one.unused, one.guaranteed, one.kept) for one in (pool, model, own, lent)] == [
        (0, 0, 70, 60),
        (40, 30, 0, 0),
        (30, 30, 0, 0),
        (0, 0, 0, 0),
    ]
    assert all(one.is_pinned for one in (pool, model, own, lent))
    assert (model.within, own.within, pool.lent) == (pool, pool, lent)
    counters.set_floors(())
    for one in (pool, model, own, lent):
        assert (one.floor, one.unused, one.guaranteed, one.kept, one.is_pinned) == (0, 0, 0, 0, False)
        assert (one.within, one.lent) == (None, None)
    assert pool.held == 10


@pytest.mark.parametrize(
    ("scopes", "owes"),
    [(("pool:p",), True), (("tenant:a", "pool:p"), True), (("tenant:a",), False), (("nobody:x",), False), ((), False)],
)
def test_B11_a_limit_that_parts_are_kept_of_is_among_what_was_missing(scopes: tuple[str, ...], owes: bool) -> None:
    counters = Counters()
    counters.set((("pool:p", "tokens", 9), ("tenant:a", "tokens", 9)), (Floor("model:m", "tokens", 1, "pool:p"),))
    assert counters.owes([Shortfall(scope, "tokens", 10, 9) for scope in scopes]) is owes


def test_B11_inside_a_reserve_is_what_takes_no_more_than_is_kept() -> None:
    counters = floored()

    def inside(*charges: tuple[str, int]) -> bool:
        return counters.inside([(scope, "tokens", amount) for scope, amount in charges])

    assert inside(("reserved:a", 30), ("pool:p", 30)) is True
    assert inside(("reserved:a", 31), ("pool:p", 31)) is False
    assert inside(("tenant:a", 1), ("pool:p", 1)) is False, "it stands on no floor"
    assert inside(("model:m", 41), ("reserved:a", 1)) is False
    counters.take((("reserved:a", "tokens", 20), ("pool:p", "tokens", 20)))
    assert (inside(("reserved:a", 10)), inside(("reserved:a", 11))) == (True, False)
    assert inside(("observed:p", 999)) is True
    counters.set_floors(())
    assert inside(("reserved:a", 1)) is False
    assert inside(("observed:p", 999)) is True
    assert inside() is False


def test_B10_what_never_fits_is_told_with_what_is_guaranteed_to_others() -> None:
    counters = floored()
    more = (("tenant:a", "tokens", 31), ("pool:p", "tokens", 31))
    assert counters.never_fits(more) == [Shortfall("pool:p", "tokens", 31, 30)]
    assert counters.never_fits([(scope, unit, 30) for scope, unit, _ in more]) == []
    assert counters.never_fits((("model:m", "tokens", 71), ("pool:p", "tokens", 71))) == [Shortfall("pool:p", "tokens", 71, 70)]
    assert counters.never_fits((("lent:p", "tokens", 100), ("pool:p", "tokens", 100))) == []
    assert counters.never_fits((("lent:p", "tokens", 101), ("pool:p", "tokens", 101))) == [
        Shortfall("pool:p", "tokens", 101, 100)
    ]


def test_B10_what_is_kept_for_itself_is_not_kept_from_it() -> None:
    counters = floored()
    charges = (("model:m", "tokens", 10), ("pool:p", "tokens", 71))
    assert counters.take(charges)[1] == [Shortfall("pool:p", "tokens", 71, 70)], "30 are the tenant's, 30 more its own"
    assert counters.take((("model:m", "tokens", 10), ("pool:p", "tokens", 70)))[1] == ()


def test_B7_what_is_read_alone_may_be_longer_than_its_limit() -> None:
    counters = Counters()
    counters.set((("replica:p/0", "prefill_tokens", 10), ("pool:p", "tokens", 10)), ())
    long = (("replica:p/0", "prefill_tokens", 50),)
    assert counters.never_fits((*long, ("pool:p", "tokens", 11))) == [Shortfall("pool:p", "tokens", 11, 10)]
    taken, shortfalls = counters.take(long)
    assert (len(taken), list(shortfalls)) == (1, [])
    assert counters.take((("replica:p/0", "prefill_tokens", 1),))[1] == [Shortfall("replica:p/0", "prefill_tokens", 51, 10)]
    assert counters.held("replica:p/0", "prefill_tokens") == 50

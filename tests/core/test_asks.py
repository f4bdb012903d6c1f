"""Several gateways over one ledger: who asks when a place comes free, and how often that is in vain (D1, A11)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headworks.core import events
from headworks.core.asks import IN_A_ROW, PAUSED_MAX, Asks
from headworks.core.book import Book
from headworks.core.commands import Answer, Command, Reserve, Unmark
from headworks.core.effects import Ask, Run
from headworks.core.policy import ClassPolicy, DisciplinePolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from tests.core.driver import Bench

FLOW, OTHER = ("interactive", "t0"), ("interactive", "t1")


class CountingBook(Book):
    """Counts what is asked of it for capacity."""

    asks = 0

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        self.asks += sum(isinstance(command, Reserve) for command in commands)
        return super().apply(commands, now_ms)


class Gateways:
    """Several, in front of one replica; whoever the book wakes hears of it."""

    def __init__(self, count: int, places: int, tenants: int, kind: str = "wfq") -> None:
        self.book = CountingBook(lease_ms=5_000, remember_ms=3_600_000)
        self.tenants = [f"t{number}" for number in range(tenants)]
        promise = ClassPolicy("interactive", ttft_slo_s=None, wait_s_max=1_000.0, queue_requests_max=10_000)
        pool = PoolPolicy(
            "p", ("m",), (ReplicaPolicy("p/0"),), active_requests_max=places, discipline=DisciplinePolicy(kind), growth=False
        )
        known = {name: TenantPolicy(name) for name in self.tenants}
        settings = Policy(version="v1", number=1, classes={"interactive": promise}, tenants=known, pools={"p": pool})
        self.benches = {f"boot-{number}": Bench(settings, book=self.book, boot=f"boot-{number}") for number in range(count)}
        self.running: list[tuple[Bench, str]] = []
        self.sent: list[str] = []

    def arrive(self, requests: int) -> None:
        """One after another, at each gateway in its turn, of each tenant in its turn."""
        benches = list(self.benches.values())
        for number in range(requests):
            tenant = self.tenants[number // len(benches) % len(self.tenants)]
            benches[number % len(benches)].arrive(100, tenant=tenant)
            self.look()

    def look(self) -> None:
        """Until nobody has anything more to hear of."""
        while wakes := self.book.take_wakes():
            for wake in wakes:
                self.benches[wake.owner.boot].feed(events.Freed(wake.pool, wake.flow))
        for bench in self.benches.values():
            self.running += [(bench, run.execution.id) for run in bench.take(Run)]

    def end_first(self) -> None:
        bench, execution = self.running.pop(0)
        bench.first_byte(execution)
        bench.complete(execution, prompt_tokens=99, output_tokens=1)
        self.look()

    def advance(self, seconds: float) -> None:
        for bench in self.benches.values():
            bench.advance(seconds)
        self.look()


@pytest.mark.parametrize("kind", ["wfq", "fifo"])
@pytest.mark.parametrize(("count", "places", "tenants"), [(4, 16, 12), (8, 4, 30), (3, 16, 1)])
def test_D1_a_release_costs_three_asks_however_many_gateways_there_are(
    count: int, places: int, tenants: int, kind: str
) -> None:
    """And no place stays empty while somebody waits. What is asked every 20 ms to be remembered is left out: no time passes."""
    fleet = Gateways(count, places, tenants, kind)
    fleet.arrive(places + 200)
    fleet.advance(0.021)
    for _ in range(40):  # by now each gateway has been woken once
        fleet.end_first()
    asked = fleet.book.asks
    for _ in range(60):
        fleet.end_first()
        assert len(fleet.running) == places
    assert fleet.book.asks - asked <= 60 * 3


def test_D1_room_for_many_is_taken_within_twenty_milliseconds() -> None:
    """All 64 end in one instant, so one gateway is woken for all of them, which has 32 of its own still to let go."""
    fleet = Gateways(2, 64, 4)
    fleet.arrive(64 + 128)
    fleet.advance(0.021)
    ended, fleet.running = fleet.running, []
    for bench, execution in ended:  # nobody hears of it before all have ended
        bench.lose_answers = True
        bench.complete(execution, prompt_tokens=99, output_tokens=1)
        bench.lose_answers = False
    fleet.look()
    fleet.advance(0.02)
    assert len(fleet.running) == 64


def test_D1_a_flow_that_is_woken_and_does_not_wait_any_more_makes_way() -> None:
    fleet = Gateways(2, 1, 1)
    fleet.arrive(5)
    bench = fleet.benches["boot-1"]
    bench.take(Ask)
    bench.feed(events.Freed("p", ("interactive", "gone")))
    (told,) = [effect.commands for effect in bench.take(Ask)]
    assert [type(command) for command in told] == [Unmark, Reserve]
    assert told[0].flow == ("interactive", "gone")


def test_D1_a_word_of_the_pool_alone_as_older_ledgers_say_it_is_heard() -> None:
    fleet = Gateways(2, 1, 1)
    fleet.arrive(3)
    bench = fleet.benches["boot-1"]
    bench.take(Ask)
    bench.feed(events.Freed("p"))
    (told,) = [effect.commands for effect in bench.take(Ask)]
    assert [type(command) for command in told] == [Reserve]


def short(*flows: tuple[str, str]) -> Asks:
    asks = Asks()
    for flow in flows:
        asks.sent_back(flow, 0.02, 0.0, True)
    return asks


def test_D1_of_a_short_pool_a_named_flow_may_ask_once() -> None:
    asks = short(FLOW, OTHER)
    asks.name(FLOW)
    assert (asks.may(FLOW), asks.may(OTHER)) == (True, False)
    asks.asked(FLOW, 0.001)
    assert not asks.may(FLOW)


def test_D1_what_nobody_used_is_gone_with_the_moment() -> None:
    asks = short(FLOW)
    asks.name(FLOW)
    asks.any()
    asks.close()
    assert not asks.may(FLOW)


def test_D1_eight_flows_at_a_time_keep_their_marks() -> None:
    asks = short(*(("interactive", f"t{number}") for number in range(PAUSED_MAX)))
    assert not asks.may(("interactive", "t8"))
    asks.look(0.02)
    assert asks.may(FLOW) and asks.may(("interactive", "t8"))


def test_D1_a_grant_lets_one_more_ask_and_a_second_two() -> None:
    asks = short(FLOW, OTHER)
    granted = []
    for _ in range(2):
        asks.granted(FLOW, True, 0.001)
        asked = 0
        while asks.may(OTHER):
            asks.asked(OTHER, 0.001)
            asked += 1
        granted.append(asked)
    assert granted == [1, 2]


def test_D1_grants_in_a_row_say_that_there_is_room() -> None:
    asks = short(FLOW)
    for _ in range(IN_A_ROW - 1):
        asks.granted(FLOW, True, 0.001)
    assert asks.is_short
    asks.granted(FLOW, True, 0.001)
    assert not asks.is_short and asks.may(FLOW) and asks.may(OTHER)


def test_D1_one_that_lacks_its_own_limit_makes_no_pool_short() -> None:
    asks = Asks()
    asks.sent_back(FLOW, 0.02, 0.0, False)
    assert (asks.is_short, asks.may(FLOW), asks.may(OTHER)) == (False, False, True)

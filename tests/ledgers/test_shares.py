"""Going on within one's share while the store is away (`ledger.when_lost: share`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Answer, Claim, Command
from headworks.core.effects import Ask, Effect, Reply, Run
from headworks.core.policy import Policy
from headworks.ledgers.memory import MemoryStore
from headworks.ledgers.shares import SharesStore
from tests.core.driver import Bench, policy

PATIENT: dict[str, Any] = {"ttft_slo_s": None, "wait_s_max": 20.0}
LIMIT_TOKENS = 900


class Far:
    """A store that others share, and the way of one gateway to it."""

    guarantee = "Far."

    def __init__(self, book: Book, clock_ms: Callable[[], int]) -> None:
        self.is_away = False
        self._near = MemoryStore(book, clock_ms)

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        if not self.is_away:
            self._near.apply(commands, answered)

    def now_ms(self) -> int:
        return self._near.now_ms()

    def close(self) -> None:
        self._near.close()


class Sharing(Bench):
    """A gateway that goes on alone when its store is away."""

    def __init__(self, book: Book, boot: str, settings: Policy | None = None) -> None:
        self.now_s = 100.0
        self.store = SharesStore(
            5_000, 3_600_000, self._clock_ms, lambda epoch: self._events.append(events.StoreChanged(epoch))
        )
        self.far = Far(book, self._clock_ms)
        self.store.store = self.far
        given = settings or policy(interactive=PATIENT, tenant={"active_tokens_max": LIMIT_TOKENS})
        super().__init__(given, book=book, boot=boot)
        self.store.changed("first")
        together(2.5, self)
        self.effects.clear()

    def _changed(self, epoch: str) -> None:
        self._events.append(events.StoreChanged(epoch))

    def _clock_ms(self) -> int:
        return int(self.now_s * 1000)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Ask):
            self.effects.append(effect)
            self.store.apply(effect.commands, lambda answers: self._events.append(events.LedgerAnswered(answers)))
        else:
            super()._perform(effect)

    def lose(self) -> None:
        self.far.is_away = True
        self.store.lost()

    def fill(self, tokens: int = 150) -> int:
        """How much more it sends, in pieces; the rest waits or is refused."""
        self.take(Run)
        for _ in range(12):
            self.arrive(tokens)
        return tokens * len(self.take(Run))


def together(seconds: float, *gateways: Bench) -> None:
    for _ in range(round(seconds / 0.05)):
        for one in gateways:
            one.advance(0.05)


def fleet(count: int = 3) -> list[Sharing]:
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    gateways = [Sharing(book, f"boot-{number}") for number in range(count)]
    for one in gateways:
        one.now_s = max(other.now_s for other in gateways)
    together(1.5, *gateways)
    return gateways


def test_K34_the_fleet_stays_below_two_limits_less_one_share_in_the_worst_case() -> None:
    one, two, three = fleet()
    assert one.fill() == LIMIT_TOKENS
    for gateway in (one, two, three):
        gateway.lose()
    together(0.5, one, two, three)
    assert (one.fill(), two.fill(), three.fill()) == (0, 300, 300), "1,500 in all: (2 - 1/3) x 900"


def test_K34_who_holds_less_than_its_part_may_take_its_part() -> None:
    one, two, three = fleet()
    one.arrive(100)
    execution = one.execution()
    for gateway in (one, two, three):
        gateway.lose()
    together(0.5, one, two, three)
    assert (one.fill(100), two.fill(), three.fill()) == (200, 300, 300)
    one.complete(execution)
    assert len(one.take(Run)) == 1, "what ended makes room for as much"


def test_K34_it_goes_on_at_once_and_for_longer_than_a_lease() -> None:
    one, *_ = fleet()
    one.lose()
    together(0.3, one)
    assert one.fill() == 300
    together(12.0, one)
    assert one.gate.snapshot(one.now_s)["open"]


def test_K34_afterwards_the_store_is_told_and_what_is_above_the_limit_drains() -> None:
    one, two, three = fleet()
    one.fill()
    runs = []
    for gateway in (one, two, three):
        gateway.lose()
    together(0.3, one, two, three)
    for gateway in (two, three):
        for _ in range(2):
            gateway.arrive(150)
        runs += [(gateway, run.execution.id) for run in gateway.take(Run)]
    assert len(runs) == 4
    for gateway in (one, two, three):
        gateway.far.is_away = False
    together(1.5, one, two, three)
    assert one.book.held("tenant:acme", "tokens") == 1_500
    assert [gateway.store.is_alone for gateway in (one, two, three)] == [False] * 3
    assert two.fill() == 0
    for gateway, execution in runs:
        gateway.complete(execution)
    assert one.book.held("tenant:acme", "tokens") == 900


def test_K34_what_ended_without_the_store_is_ended_in_it_afterwards() -> None:
    one, *_ = fleet()
    one.arrive(100)
    execution = one.execution()
    one.first_byte(execution)
    one.lose()
    together(8.0, one)
    one.complete(execution)
    one.book.apply([], one._clock_ms())
    assert [record.state for record in one.book.charged()] == ["ORPHANED"]
    one.far.is_away = False
    together(8.0, one)
    record = one.book.find(execution)
    assert record is not None and (record.state, record.evidence) == ("COMPLETED", "E1")


def test_A6_a_key_is_not_claimed_where_nobody_can_know_who_runs_it() -> None:
    one, *_ = fleet()
    one.lose()
    together(0.5, one)
    one.take(Ask)
    one.arrive(100, key_given=True, start_by_s=one.now_s + 2.0)
    assert [type(command) for ask in one.take(Ask) for command in ask.commands] == [Claim]
    assert one.take(Run) == []
    together(25.0, one)
    assert [reply.decision.reason for reply in one.take(Reply)] == ["ledger_unavailable"]


def test_K34_what_fits_into_no_share_waits_and_is_not_told_never() -> None:
    one, *_ = fleet()
    one.lose()
    together(0.5, one)
    one.take(Reply)
    one.arrive(400)
    assert one.take(Run) == [] and one.take(Reply) == []


def test_K34_who_has_yet_to_tell_a_new_store_is_counted_all_the_same() -> None:
    one, two, three = fleet()
    two.far.is_away = three.far.is_away = True
    fresh = Book(lease_ms=5_000, remember_ms=3_600_000)
    one.far = one.store.store = Far(fresh, one._clock_ms)
    one.book = fresh
    one.store.changed("second")
    together(1.0, one)
    one.lose()
    together(0.5, one)
    assert one.fill() == 300


def test_who_has_never_been_told_of_the_others_does_not_go_on_alone() -> None:
    store = SharesStore(5_000, 3_600_000, lambda: 0)
    assert not store.lost() and not store.is_alone

"""A gate on a bench: a policy, a book that answers at once, engines that do what a test says, and a clock it sets."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, TypeVar

from headworks.core import events
from headworks.core.book import Book
from headworks.core.effects import Abort, Ask, Attach, Effect, Outcome, Record, Reply, Run, WakeAt
from headworks.core.gate import Gate
from headworks.core.policy import ClassPolicy, DisciplinePolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import Capacity, Decision, ReplicaSample, Request, RequestKey, Usage

EffectType = TypeVar("EffectType")


def policy(
    *,
    interactive: dict[str, Any] | None = None,
    tenant: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    kind: str = "predictive_ttft",
    replicas: int = 1,
    **discipline: Any,
) -> Policy:
    """One class, tenants `acme` and `batchco`, one pool `p`."""
    names = tuple(ReplicaPolicy(f"p/{number}") for number in range(replicas))
    return Policy(
        version="v1",
        number=1,
        classes={"interactive": ClassPolicy("interactive", **(interactive or {}))},
        tenants={name: TenantPolicy(name, **(tenant or {})) for name in ("acme", "batchco")},
        pools={"p": PoolPolicy("p", ("m",), names, discipline=DisciplinePolicy(kind, **discipline), **(pool or {}))},
    )


def capacity(replica: str = "p/0", kv_tokens: int | None = 40_000, **changed: Any) -> Capacity:
    known = Capacity(replica, "fake", "1", "a", 32_768, kv_tokens, 1, None, ("E1", "E3a", "E3b", "E4"))
    return replace(known, **changed)


class Bench:
    """Feeds a gate and its book. Effects of a turn are kept in `effects` until they are taken."""

    def __init__(
        self,
        settings: Policy,
        *,
        capacities: tuple[Capacity, ...] | None = None,
        book: Book | None = None,
        boot: str = "boot-1",
    ) -> None:
        self.book = book or Book(lease_ms=5_000, remember_ms=3_600_000)
        self.gate = Gate(settings, "g1", boot.encode(), boot)
        self.now_s = 100.0
        self.effects: list[Effect] = []
        self.lose_asks = False
        """Commands asked while this is set never reach the book."""
        self.lose_answers = False
        """Commands asked while this is set are run, and nobody hears what came of them."""
        self.keeps_answers = True
        """Whoever is attached gets the answer."""
        self._events: deque[events.Event] = deque()
        self._wake_s = float("inf")
        self._arrivals = 0
        self.feed(events.Tick())
        for known in (capacity(),) if capacities is None else capacities:
            self.feed(events.ReplicaDescribed(known))
        self.effects.clear()

    def feed(self, event: events.Event) -> None:
        """One event and all that follows from it at this instant; the gate and the book must be sound after each."""
        self._events.append(event)
        while self._events:
            for effect in self.gate.handle(self._events.popleft(), self.now_s):
                self._perform(effect)
            assert self.gate.check() == []
            assert self.book.check() == []

    def _perform(self, effect: Effect) -> None:
        self.effects.append(effect)
        if isinstance(effect, WakeAt):
            self._wake_s = effect.at_s
        elif isinstance(effect, Ask) and not self.lose_asks:
            answers = self.book.apply(effect.commands, int(self.now_s * 1000))
            if not self.lose_answers:
                self._events.append(events.LedgerAnswered(answers))
        elif isinstance(effect, Attach):
            self._events.append(events.Attached(effect.id, self.keeps_answers))

    def advance(self, seconds: float) -> None:
        """Let time pass, with the wake-ups the gate asked for."""
        until_s = self.now_s + seconds
        while self._wake_s <= until_s:
            self.now_s = max(self.now_s, self._wake_s)
            self._wake_s = float("inf")
            self.feed(events.Tick())
        self.now_s = until_s

    def arrive(self, tokens: int, output_tokens: int = 1, **changed: Any) -> str:
        """A request of `tokens` in all, `output_tokens` of them output. Returns its id."""
        request = self.request(tokens, output_tokens, **changed)
        self.feed(events.Arrived(request))
        return request.id

    def request(self, tokens: int, output_tokens: int = 1, **changed: Any) -> Request:
        """The same, and it does not arrive."""
        self._arrivals += 1
        request = Request(
            id=f"r{self._arrivals}",
            key=RequestKey(changed.pop("tenant", "acme"), f"k{self._arrivals}"),
            key_given=False,
            fingerprint="",
            client="acme/key",
            service_class="interactive",
            model="m",
            pool="p",
            prompt_bytes=4 * tokens,
            prompt_tokens=tokens - output_tokens,
            output_tokens_max=output_tokens,
            samples=1,
            stream=True,
            prefix=(),
            session=None,
            retry_count=0,
            arrived_s=self.now_s,
            start_by_s=float("inf"),
            finish_by_s=self.now_s + 55.0,
        )
        return replace(request, **changed)

    def take(self, kind: type[EffectType]) -> list[EffectType]:
        """The effects of one kind since they were taken last."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def decisions(self) -> list[Decision]:
        return [effect.record for effect in self.take(Record) if isinstance(effect.record, Decision)]

    def outcomes(self) -> list[Outcome]:
        return [effect.record for effect in self.effects if isinstance(effect, Record) and isinstance(effect.record, Outcome)]

    def execution(self) -> str:
        """The one execution that was sent since the last look."""
        (run,) = self.take(Run)
        return run.execution.id

    def refusal(self) -> Decision:
        (reply,) = self.take(Reply)
        return reply.decision

    def first_byte(self, execution: str) -> None:
        self.feed(events.FirstByte(execution))

    def complete(self, execution: str, prompt_tokens: int = 1, output_tokens: int = 1) -> None:
        self.feed(events.Stopped(execution, Usage(prompt_tokens, 0, output_tokens, 0.0, "stop", True), False))

    def sample(self, replica: str = "p/0", **changed: Any) -> None:
        known = ReplicaSample(replica, "a", self.now_s, self.now_s, (0,), 0, 0, 0.0, None, 0)
        self.feed(events.ReplicaSampled(replace(known, **changed)))

    def held(self, scope: str = "pool:p", unit: str = "tokens") -> int:
        return self.book.held(scope, unit)

    def aborts(self) -> list[Abort]:
        return self.take(Abort)


def drained_at(bench: Bench, per_s: float, tokens: int, waiting: int) -> list[str]:
    """Bring a pool to a measured drain rate of `per_s` requests of `tokens` each, with `waiting` requests in its queue.

    Uses one place (`active_requests_max=1`): every completion lets the next one in.
    """
    for _ in range(waiting + 21):
        bench.arrive(tokens)
    sent: list[str] = []
    for _ in range(20):
        (run,) = bench.take(Run)
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
        sent.append(run.execution.id)
        bench.advance(1.0 / per_s)
    bench.first_byte(bench.execution())
    return sent

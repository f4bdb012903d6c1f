"""What each stage of a request costs by itself: the real classes, called in a loop in this process.

The parts do not add up to the whole: reading and writing sockets, the HTTP parser and the event loop are most of it, and
caches are warmer here. They tell where a change was felt. Medians of `REPEATS`, microseconds a call.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from headworks.core import effects, events
from headworks.core.book import Book
from headworks.core.commands import Answer, Reserve, Start, Stop
from headworks.core.gate import Gate
from headworks.core.policy import ClassPolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import Capacity, Charge, Decision, Owner, Request, RequestKey, Usage
from headworks.gateway.accounts import Accounts, Records
from headworks.gateway.audience import Audience
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.dialects import chat
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.event_rate import EventRate
from headworks.gateway.every_answer import Ids
from headworks.gateway.keys import Identity, Key, Keys
from headworks.gateway.metrics import Registry
from headworks.gateway.reader import Reader
from headworks.gateway.relay import Relay
from headworks.ledgers.memory import MemoryStore

REPEATS, CALLS = 7, 3_000
INFINITE_S = float("inf")
PROMPT = ("the quick brown fox jumps over a lazy dog " * 25)[:1024]
BODY = b'{"model":"mock","messages":[{"role":"user","content":"%s"}],"max_tokens":64,"seed":0}' % PROMPT.encode()
USAGE = Usage(prompt_tokens=100, cached_tokens=0, output_tokens=64, engine_s=0.1, end="length", exact=True)


def stages_us() -> dict[str, float]:
    """Every stage's cost, in the order in which a request meets them."""
    keys = Keys(b"pepper", [Key(f"hw-{number:032x}", Identity("acme", "1")) for number in range(100)])
    header = f"Bearer hw-{42:032x}".encode()
    limits = Limits(context_tokens=1_048_576)
    parsed = chat.parse(BODY, limits)
    assert isinstance(parsed, Parsed)
    lives = Lives()
    life_us = timed(lives)
    ledger_us = timed(Pairs())
    with tempfile.TemporaryDirectory() as folder:
        log = DecisionLog(Path(folder), clock_s=time.monotonic, wall_s=time.time)
        records = Records(Accounts(registry()), log)
        record_us = timed(lambda: [records.record(record) for record in lives.records])
        log.close()
    return {
        "key": timed(lambda: keys.identify(header, "127.0.0.1", 1.0)),
        "parse, 1 KB": timed(lambda: chat.parse(BODY, limits)),
        "gate and ledger, arrival to end": life_us,
        "of it the ledger: reserve, start, stop": ledger_us,
        "build, 1 KB": timed(lambda: parsed.build(64, None)),
        "decision and outcome: metrics and log": record_us,
        "relay, a chunk": timed(Chunks()),
    }


def timed(call: Callable[[], object]) -> float:
    """Microseconds a call, the collector held back as it is in production."""
    for _ in range(CALLS // 3):
        call()
    costs: list[float] = []
    gc.collect()
    gc.freeze()
    for _ in range(REPEATS):
        begun_ns = time.process_time_ns()  # CPU time: other work on the machine does not count
        for _ in range(CALLS):
            call()
        costs.append((time.process_time_ns() - begun_ns) / 1000 / CALLS)
    gc.unfreeze()
    return median(costs)


class Pairs:
    """The ledger's share of one request: three commands with the charges of production."""

    def __init__(self) -> None:
        self._number = 0
        self._store = MemoryStore(Book(lease_ms=5_000, remember_ms=3_600_000), lambda: self._number // 10)
        self._owner = Owner("bench", "boot")
        self._charges = (
            Charge("tenant:acme", "tokens", 1088),
            Charge("tenant:acme", "requests", 1),
            Charge("pool:mock", "tokens", 1088),
            Charge("replica:mock/0", "tokens", 1088),
            Charge("replica:mock/0", "requests", 1),
        )

    def __call__(self) -> None:
        self._number += 1
        execution = f"{self._number:032x}"
        reserve = Reserve(
            execution, None, "", self._owner, "mock", "mock/0", ("interactive", "acme"), (1.0, 1.0), 1088,
            self._charges, 0, False, "1",
        )  # fmt: skip
        for command in (
            reserve,
            Start(execution, self._owner),
            Stop(execution, self._owner, "E1", "completed", USAGE),
        ):
            self._store.apply([command], ignore)


class Lives:
    """A request's whole way through gate and ledger, with nothing around them but a queue of events."""

    def __init__(self) -> None:
        self._gate = Gate(policy(), "bench", b"0123456789abcdef", "boot")
        self._now_s = 1.0
        self._store = MemoryStore(Book(lease_ms=5_000, remember_ms=3_600_000), lambda: int(self._now_s * 1000))
        self._number = 0
        self._ran = ""
        self._waiting: list[events.Event] = []
        self.records: list[Decision | effects.Outcome] = []
        """What the last request left to be written down."""
        capacity = Capacity(
            "mock/0", "vllm", "mock", "1", 1_048_576, 67_108_864, 16, None, ("E1", "E3a", "E3b", "E4"), ("mock",)
        )
        self._feed(events.Tick())
        self._feed(events.ReplicaDescribed(capacity))

    def __call__(self) -> None:
        self._now_s += 0.0001
        self._number += 1
        self._ran = ""
        self.records.clear()
        self._feed(events.Arrived(self._request()))
        assert self._ran, "the request was not admitted: the bench measures something else than it says"
        self._feed(events.FirstByte(self._ran))
        self._feed(events.Stopped(self._ran, USAGE, False))
        if self._number % 1_000 == 0:
            self._feed(events.Tick())

    def _request(self) -> Request:
        return Request(
            id=f"{self._number:032x}", key=RequestKey("acme", f"{self._number:x}"), key_given=False, fingerprint="",
            client="acme/1", service_class="interactive", model="mock", pool="mock", prompt_bytes=1024, prompt_tokens=None,
            output_tokens_max=64, samples=1, stream=False, prefix=(), session=None, retry_count=0,
            arrived_s=self._now_s, start_by_s=INFINITE_S, finish_by_s=INFINITE_S,
        )  # fmt: skip

    def _feed(self, event: events.Event) -> None:
        self._waiting.append(event)
        while self._waiting:
            for effect in self._gate.handle(self._waiting.pop(), self._now_s):
                if isinstance(effect, effects.Ask):
                    self._store.apply(effect.commands, self._answered)
                elif isinstance(effect, effects.Run):
                    self._ran = effect.execution.id
                elif isinstance(effect, effects.Record):
                    self.records.append(effect.record)

    def _answered(self, answers: list[Answer]) -> None:
        self._waiting.append(events.LedgerAnswered(answers))


class Chunks:
    """One token event through the relay of a running stream, to a client that takes everything and does nothing."""

    CHUNK = (
        b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
        b'"model":"mock","choices":[{"index":0,"delta":{"content":"T0000000000000000"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    RAW = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)

    def __init__(self) -> None:
        audience = Audience(time.time)
        audience.join(Sink(), Ids(b"1", b"2"), [], lambda: None)
        self._relay = Relay(
            audience, Nobody(), stream=True, samples=1, include_usage_asked=True, rate=EventRate(),
            is_busy=lambda status, payload: False, clock_s=time.monotonic,
        )  # fmt: skip
        self._relay.on_head(200, [(b"content-type", b"text/event-stream")], True)

    def __call__(self) -> None:
        self._relay.on_body(self.RAW, self.CHUNK)


class Sink:
    """A client's end of the exchange."""

    chunked = True

    def read_by(self, reader: Reader) -> None: ...
    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None: ...
    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]], length: int | None) -> None: ...
    def write(self, payload: bytes) -> None: ...
    def write_raw(self, raw: bytes) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


class Nobody:
    """Hears what became of the execution."""

    def first_byte(self) -> None: ...
    def progressed(self, output_tokens: int) -> None: ...
    def slow(self, paused: bool) -> None: ...
    def stopped(self, usage: Usage, failed: bool, at_once: bool = False) -> None: ...
    def lost(self, cause: str) -> None: ...
    def not_sent(self, reason: str) -> None: ...
    def busy(self) -> None: ...
    def closed(self) -> None: ...
    def over(self) -> None: ...


def ignore(answers: list[Answer]) -> None:
    """For asks whose answer nobody needs here."""


def registry() -> Registry:
    """Series for the one tenant and class there is."""
    made = Registry(tuple)
    for label, values in (("tenant", ["acme"]), ("class", ["interactive"]), ("model", ["mock"]), ("pool", ["mock"])):
        made.allow(label, values)
    return made


def policy() -> Policy:
    """One tenant with limits, one class, one pool of one replica."""
    return Policy(
        version="1",
        number=1,
        classes={"interactive": ClassPolicy("interactive")},
        tenants={"acme": TenantPolicy("acme", active_tokens_max=50_000_000, active_requests_max=4_000)},
        pools={"mock": PoolPolicy("mock", ("mock",), (ReplicaPolicy("mock/0"),), active_requests_max=4_000)},
    )


if __name__ == "__main__":
    for name, cost_us in stages_us().items():
        print(f"{cost_us:8.2f}  {name}")

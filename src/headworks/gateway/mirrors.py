"""Copies of a share of one pool's requests, sent to a second pool to see what it would make of them (F3).

A copy is a request of its own: of the tenant `(mirror)`, in a class that gives way to everybody, under an id that says nothing
of its original. It goes through the same gate, so it is charged, its stop is proved like any other's and nothing of it is
foreign load. But it is made only where the second pool has room this moment (`Gate.consider`), it waits for nothing but the
ledger's answer, is tried once, and its answer is read and dropped. So it delays nobody: in the first pool it holds nothing,
in the second whoever comes finds what every running request leaves. Nobody is billed: it is in the usage journal, as an
engine's time is divided among all that was inside, without a price. In the metrics of requests it is not.

Whatever became of its original, admitted or refused, the copy is made, and the decision log says which is whose: so
`headworks observe` can tell what would have become of what was refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headworks.config.settings import MirrorSettings
from headworks.core import effects, events
from headworks.core.policy import INFINITE_S, MIRROR, Policy
from headworks.core.types import Decision, Request, RequestKey, Usage, Variant
from headworks.engines.base import Engine
from headworks.gateway.audience import EngineHeaders, Source
from headworks.gateway.dialects import variants
from headworks.gateway.dialects.base import NO_PARTS, Parsed
from headworks.gateway.dialects.table import Dialect
from headworks.gateway.event_rate import EventRate
from headworks.gateway.follow import Follow
from headworks.gateway.guard import Guard
from headworks.gateway.log_records import CopyRecord
from headworks.gateway.models import Models
from headworks.gateway.prefixes import prefix_of
from headworks.gateway.relay import Relay
from headworks.gateway.runner import Runner

if TYPE_CHECKING:
    from headworks.gateway.proxy import ProxyCall

INSIDE_MAX = 64
"""Copies under way at once: what their bodies and answers take of memory is bounded by it."""
BUSY, FULL, NO_MODEL, NO_ROOM = "gateway_overloaded", "too_many_copies", "no_such_model", "no_room"
"""Why a request that was chosen was not copied."""


class Mirrors:
    """Who chooses what is copied, and holds the copies under way."""

    def __init__(
        self,
        runner: Runner,
        models: Models,
        guard: Guard,
        note: Callable[[CopyRecord], None],
        policy: Policy,
        mirrors: Mapping[str, MirrorSettings],
        *,
        boot: str,
        clock_s: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`note` writes down which copy is whose; `draw` is a number from 0 to 1 by which requests are chosen."""
        self.runner, self.clock_s = runner, clock_s
        self._models, self._guard = models, guard
        self._note, self._draw = note, draw
        self._policy, self._mirrors = policy, mirrors
        self._prefix, self._count = f"mir_{boot[:12]}", 0
        self._inside: dict[str, Copy] = {}
        self._rates: dict[str, EventRate] = {}
        self._copied: dict[str, int] = {}
        self._left_out: dict[str, dict[str, int]] = {}

    def change(self, policy: Policy, mirrors: Mapping[str, MirrorSettings]) -> None:
        """What is copied from now on."""
        self._policy, self._mirrors = policy, mirrors

    def if_any(self) -> Mirrors | None:
        """Itself, where something is to be copied: requests of other gateways are not asked whether they are chosen."""
        return self if self._mirrors else None

    def saw(self, call: ProxyCall) -> None:
        """A request has just been handed to the gate. It may be chosen; whatever is done here, it goes its own way."""
        mirror = self._mirrors.get(call.request.pool)
        if mirror is not None and self._draw() < mirror.copied_ratio:
            self._chosen(call, mirror.pool)

    def _chosen(self, call: ProxyCall, pool: str) -> None:
        name = f"{self._prefix}{self._count:x}"
        self._count += 1
        copy, left_out = self._copy(call, pool, name)
        request = call.request
        if copy is None:
            counts = self._left_out.setdefault(request.pool, {})
            counts[left_out] = counts.get(left_out, 0) + 1
        else:
            self._copied[request.pool] = self._copied.get(request.pool, 0) + 1
            self._inside[name] = copy
            self.runner.admit(copy)
        self._note(CopyRecord(request.id, request.key, "" if copy is None else name, pool, left_out))

    def _copy(self, call: ProxyCall, pool: str, name: str) -> tuple[Copy | None, str]:
        """The copy, or why there is none."""
        if self._guard.overload is not None:
            return None, BUSY
        if len(self._inside) >= INSIDE_MAX:
            return None, FULL
        parsed = self._parsed(call.parsed, pool)
        if parsed is None:
            return None, NO_MODEL
        now_s = self.clock_s()
        request = replace(
            call.request,
            id=name,
            key=RequestKey(MIRROR, name),
            key_given=False,
            fingerprint="",
            client=MIRROR,
            service_class=MIRROR,
            model=parsed.model,
            pool=pool,
            prefix=prefix_of(parsed, self._policy.pools[pool]),
            session=None,
            retry_count=0,
            arrived_s=now_s,
            start_by_s=INFINITE_S,
            leeway=None,
        )
        if self.runner.gate.consider(request, now_s).outcome != "admit":
            return None, NO_ROOM
        return Copy(self, request, parsed, call.dialect, call.idle_s), ""

    def _parsed(self, parsed: Parsed, pool: str) -> Parsed | None:
        """What is sent there: the same, and by the name of a model that the pool serves. None: that cannot be."""
        served = self._models.of_pool(pool)
        if not served or pool not in self._policy.pools:
            return None
        model = parsed.model if parsed.model in served else served[0]
        if self._models.missing(pool, model, parsed.path):
            return None
        if model == parsed.model:
            return replace(parsed)  # of its own: the original lets go of what it asked once it has its answer
        if parsed.path not in variants.ROUTES or parsed.parts is not NO_PARTS:
            return None
        return variants.applied(parsed, Variant(model, False, False, ()))

    def rate(self, replica: str) -> EventRate:
        """How many tokens an event of that engine is."""
        rate = self._rates.get(replica)
        if rate is None:
            rate = self._rates[replica] = EventRate()
        return rate

    def ended(self, name: str) -> None:
        """A copy is over."""
        self._inside.pop(name, None)

    def close(self) -> None:
        """Nothing is copied any more, and what is under way is stopped: nobody waits for it."""
        self._mirrors = {}
        for copy in list(self._inside.values()):
            copy.leave()

    def shown(self) -> dict[str, Any]:
        """For people, by the pool that is copied."""
        return {
            name: {
                "to": mirror.pool,
                "ratio": mirror.copied_ratio,
                "copied_total": self._copied.get(name, 0),
                "left_out_total": dict(self._left_out.get(name, {})),
                "inside": sum(copy.request.pool == mirror.pool for copy in self._inside.values()),
            }
            for name, mirror in self._mirrors.items()
        }


class Copy:
    """One copy, as the runner sees it (`runner.Call`)."""

    __slots__ = ("_dialect", "_idle_s", "_mirrors", "_over", "_parsed", "request")

    def __init__(self, mirrors: Mirrors, request: Request, parsed: Parsed, dialect: Dialect, idle_s: float) -> None:
        self._mirrors = mirrors
        self.request = request
        self._parsed, self._dialect, self._idle_s = parsed, dialect, idle_s
        self._over = False

    def send(self, engine: Engine, run: effects.Run) -> Follow:
        mirrors, parsed, runner = self._mirrors, self._parsed, self._mirrors.runner
        follow = Follow(runner, run.execution, self._idle_s)
        streamed = run.watch_tokens > 0 and not parsed.stream
        relay = follow.relay = Relay(
            Unread(self.ended),
            follow,
            parsed.stream or streamed,
            parsed.samples,
            True,
            mirrors.rate(engine.replica),
            engine.is_busy,
            mirrors.clock_s,
            watch_tokens=run.watch_tokens,
            prompt_tokens=run.decision.work.prefill_tokens * parsed.prompts // parsed.samples,
            speech=self._dialect.speech,
        )
        body = parsed.build(run.output_tokens_max, None, streamed)
        try:
            relay.attach(engine.run(run.execution.id, self._dialect.path, body, run.send_before_s, relay))
        except Exception as fault:  # nobody can say whether any of it went out
            runner.faulted(run, fault)
            relay.on_lost("a fault of ours")
        return follow

    def join(self, execution: str, decision: Decision) -> bool:
        return False

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None:
        """The room was taken meanwhile, or its engine did not take it. The log has it."""

    def serve(self, decision: Decision) -> None:
        raise AssertionError("a copy consents to nothing")

    def ended(self) -> None:
        if not self._over:
            self._over = True
            self._mirrors.runner.forget(self.request.id)
            self._mirrors.ended(self.request.id)

    def fail(self, fault: Exception) -> None:
        self.leave()

    def leave(self) -> None:
        """Its answer is not wanted any more."""
        if not self._over:
            self.ended()
            self._mirrors.runner.feed(events.ClientGone(self.request.id))


class Unread:
    """An answer that nobody reads (`outlet.Outlet`)."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    @property
    def untouched(self) -> bool:
        """As if something had been said: there is no second attempt."""
        return False

    def fed_by(self, source: Source) -> None:
        pass

    def respond(self, status: int, engine_headers: EngineHeaders, body: bytes) -> None:
        self._ended()

    def start(self, status: int, engine_headers: EngineHeaders) -> None:
        pass

    def send(self, raw: bytes | None, payload: bytes) -> None:
        pass

    def straight(self) -> Callable[[bytes], None]:
        return _dropped

    def finish(self) -> None:
        self._ended()

    def fail(
        self,
        code: str,
        *,
        value: float | None = None,
        limit: float | None = None,
        unit: str = "",
        subject: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self._ended()


def _dropped(frame: bytes) -> None:
    """Read, so that the engine can go on, and that is all."""


def uncopied(record: CopyRecord) -> None:
    """Where no decision log is kept, nobody can ask which copy is whose."""

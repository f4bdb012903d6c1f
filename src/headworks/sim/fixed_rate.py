"""`FixedRate`: a deterministic server of known rate, for cases whose figures can be worked out by hand.

`servers` seats serve one request each, in order of arrival, every request for exactly servers ÷ rate seconds, whatever
its length: so `rate_per_s` requests a second leave while there is work. Its first token is there after `prefill_ratio`
of that, the rest at the end. A request whose client has left is served like any other unless it is aborted, which
frees its seat at the next tick of the progress clock; the clock counts ticks in which somebody was served.

An execution is one seat however many samples it has; `running` and `waiting` count executions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from headworks.sim.engine import ABORTED, ENDED, Finished, FirstToken, Gauges, Held, Output, Submitted, Tokens, on_grid_s
from headworks.sim.presets import FixedRateSettings

# What is due at one instant happens in this order: seats are emptied before an abort looks for somebody to stop.
_FIRST_TOKEN, _END, _ABORT = 0, 1, 2


@dataclass(slots=True, eq=False)
class _Service:
    execution: str
    prompt_tokens: int
    output_tokens: int
    samples: int
    seated: bool = False
    began: bool = False


class FixedRate:
    """See the module. Obeys `sim.engine.EngineModel`."""

    def __init__(self, settings: FixedRateSettings) -> None:
        assert settings.rate_per_s > 0 and settings.servers > 0 and 0 < settings.prefill_ratio <= 1
        self._settings = settings
        self.kv_tokens = settings.kv_tokens
        self.block_tokens = settings.block_tokens
        self.running_max = settings.servers
        self.incarnation = 0
        self._factor = 1.0
        self._outbox: list[Output] = []
        self._stand_up()

    def _stand_up(self) -> None:
        self.incarnation += 1
        self._services: dict[str, _Service] = {}
        self._waiting: dict[str, _Service] = {}
        self.inside = 0
        self._seated = 0
        self._events: list[tuple[float, int, int, _Service]] = []
        self._event_number = 0
        self._paused_s: float | None = None
        self._busy_since_s: float | None = None
        self._busy_ticks = 0
        self._prompt_total = 0
        self._output_total = 0
        self._frozen: Gauges | None = None

    def submit(
        self,
        execution: str,
        prompt_tokens: int,
        output_tokens: int,
        samples: int,
        prefix_blocks: Sequence[Hashable],
        now_s: float,
    ) -> Submitted:
        """`prefix_blocks` is of no use here: every request takes the same time."""
        assert prompt_tokens > 0 and output_tokens >= 0 and samples > 0
        self._run_until(now_s)
        assert execution not in self._services, "an execution is submitted once"
        if samples * (prompt_tokens + output_tokens) > self.kv_tokens:
            return Submitted.TOO_LONG
        if self._settings.queued_max is not None and self.inside + samples > self._settings.queued_max:
            return Submitted.BUSY
        service = _Service(execution, prompt_tokens, output_tokens, samples)
        self.inside += samples
        self._services[execution] = self._waiting[execution] = service
        if self._paused_s is None:
            self._seat(on_grid_s(now_s))
        return Submitted.ACCEPTED

    def _seat(self, now_s: float) -> None:
        """Fill the free seats from the front of the line."""
        while self._waiting and self._seated < self._settings.servers:
            service = self._waiting.pop(next(iter(self._waiting)))
            service.seated = True
            self._seated += 1
            if self._busy_since_s is None:
                self._busy_since_s = now_s
            service_s = self._settings.servers / self._settings.rate_per_s * self._factor
            self._file(now_s + service_s * self._settings.prefill_ratio, _FIRST_TOKEN, service)
            self._file(now_s + service_s, _END, service)

    def _file(self, at_s: float, what: int, service: _Service) -> None:
        self._event_number += 1
        heappush(self._events, (on_grid_s(at_s), what, self._event_number, service))

    def abort(self, execution: str, now_s: float) -> None:
        self._run_until(now_s)
        service = self._services.get(execution)
        if service is not None:  # what a pause finds filed is moved by all of it, so within one its own time stands still
            at_s = now_s if self._paused_s is None else self._paused_s
            self._file(self._next_tick_s(at_s), _ABORT, service)

    def _next_tick_s(self, now_s: float) -> float:
        tick_s = self._settings.tick_s
        return math.floor(on_grid_s(now_s / tick_s) + 1) * tick_s

    def next_s(self) -> float | None:
        if self._outbox:
            return self._outbox[0].at_s
        if self._paused_s is not None or not self._events:
            return None
        return self._events[0][0]

    def advance(self, now_s: float) -> list[Output]:
        self._run_until(now_s)
        outputs, self._outbox = self._outbox, []
        return outputs

    def _run_until(self, now_s: float) -> None:
        if self._paused_s is not None:
            return
        while self._events and self._events[0][0] <= now_s:
            at_s, what, _, service = heappop(self._events)
            # What was filed for a service that has left since is void.
            if self._services.get(service.execution) is not service:
                continue
            if what == _FIRST_TOKEN:
                self._begin(service, at_s)
            else:
                self._finish(service, at_s, ENDED if what == _END else ABORTED)

    def _begin(self, service: _Service, at_s: float) -> None:
        service.began = True
        self._prompt_total += service.prompt_tokens * service.samples
        self._outbox.append(FirstToken(service.execution, at_s))
        if service.output_tokens:
            self._produce(service, 1, at_s)

    def _produce(self, service: _Service, count: int, at_s: float) -> None:
        self._output_total += count * service.samples
        for sample in range(service.samples):
            self._outbox.append(Tokens(service.execution, sample, count, at_s))

    def _finish(self, service: _Service, at_s: float, reason: str) -> None:
        if reason == ENDED and service.output_tokens > 1:
            self._produce(service, service.output_tokens - 1, at_s)
        del self._services[service.execution]
        self.inside -= service.samples
        if service.seated:
            self._seated -= 1
        else:
            del self._waiting[service.execution]
        self._outbox.append(Finished(service.execution, reason, at_s))
        self._seat(at_s)
        if self._seated == 0:
            self._busy_ticks += self._ticks_since_busy(at_s)
            self._busy_since_s = None

    def _ticks_since_busy(self, now_s: float) -> int:
        if self._busy_since_s is None:
            return 0
        tick_s = self._settings.tick_s
        return math.floor(on_grid_s(now_s / tick_s)) - math.floor(on_grid_s(self._busy_since_s / tick_s))

    def sample(self, now_s: float) -> Gauges:
        self._run_until(now_s)
        return self._frozen or self._look(now_s)

    def _look(self, now_s: float) -> Gauges:
        return Gauges(
            incarnation=self.incarnation,
            running=self._seated,
            waiting=len(self._waiting),
            kv_used_ratio=min(1.0, self.used_tokens() / self.kv_tokens),
            iterations=self._busy_ticks + self._ticks_since_busy(now_s),
            preemptions=0,
            prompt_tokens=self._prompt_total,
            cached_tokens=0,
            output_tokens=self._output_total,
        )

    def held(self, now_s: float) -> dict[str, Held]:
        self._run_until(now_s)
        return {service.execution: Held(service.samples, _memory_tokens(service)) for service in self._services.values()}

    def used_tokens(self) -> int:
        return sum(_memory_tokens(service) for service in self._services.values())

    def restart(self, now_s: float) -> list[str]:
        self._run_until(now_s)
        lost = list(self._services)
        self._stand_up()
        return lost

    def pause(self, now_s: float) -> None:
        self._run_until(now_s)
        if self._paused_s is None:
            self._frozen = self._look(now_s)
            self._paused_s = now_s

    def resume(self, now_s: float) -> None:
        """Everything that was due is as much later as it stood; the clock counts no tick of the pause."""
        if self._paused_s is None:
            return
        stood_s, self._paused_s, self._frozen = now_s - self._paused_s, None, None
        self._events = [(on_grid_s(at_s + stood_s), what, number, service) for at_s, what, number, service in self._events]
        if self._busy_since_s is not None:
            self._busy_since_s += stood_s
        self._seat(on_grid_s(now_s))

    def slow(self, factor: float) -> None:
        assert factor > 0
        self._factor = factor


def _memory_tokens(service: _Service) -> int:
    return service.samples * (service.prompt_tokens + service.output_tokens) if service.seated else 0

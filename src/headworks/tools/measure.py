"""Measures what a live engine can do, by a mix of requests: alone, kept full, and at rising rates (C4).

Three questions, in this order and each in its part of the time:

1. *alone*: one request at a time. First tokens against prompt lengths make a line: its slope is what a prompt token costs.
2. *kept full*: so many clients that each ask again at once, twice as many each time, until more of them bring no more or wait
   too long for their first tokens. The smallest number that brings nearly the most is kept for longer: completions per second
   there are the service rate, with the 95 % interval of the gaps between them.
3. *rising rates*: requests come at random, whether the engine keeps up or not. The highest rate at which nearly all have
   their first token in time is the saturation.

It gives an engine all it can bear for minutes: it is for engines that nobody else uses meanwhile. Clients that are not
answered in time hang up, so a step leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

import httpx

from headworks.core.predict import DrainRate
from headworks.core.stats import FittedLine
from headworks.tools.load import Plan, base_of, fields_of, head_of, path_of
from headworks.tools.load_engine import LoadError, Target, Words, calibrate, target
from headworks.tools.load_figures import spread
from headworks.tools.load_wire import COMPLETE, REFUSED, UNCONNECTED, Attempt, Pool

SIZES = (("small", 64, 64), ("medium", 512, 128), ("large", 2048, 256))
"""Name, prompt tokens, output tokens; all smaller by one factor where the context is short."""
CONTEXT_RATIO = 0.5
"""The largest request takes this much of the context at most."""
ALONE_RATIO, RAMP_RATIO, FULL_RATIO, RATES_RATIO = 0.15, 0.3, 0.25, 0.3
"""What each part takes of the time."""
ALONE_MIN = 6
CLIENTS_MAX = 1024
RAMP_STEPS = 8
"""The time of the ramp is divided by so many, a step each; it ends earlier as a rule."""
GAIN_MIN = 1.05
"""Twice the clients that bring less than this bring nothing more."""
NEARLY_RATIO = 0.95
"""The fewest clients that bring so much of the most are enough to keep the engine full."""
SETTLING_RATIO = 0.25
"""Of a step, the beginning in which all clients start together: it is not counted."""
RATE_STEPS = (0.6, 0.75, 0.9, 1.05, 1.2)
"""Rates that are tried, as parts of the service rate."""
ON_TIME_RATIO = 0.99
WIDE_RATIO = 0.1
GAPS_KEPT = 100_000
LIMIT_S = 600.0
HANG_UP_S = 1.0


@dataclass(slots=True)
class Order:
    """What to measure, and with what."""

    url: str
    duration_s: float
    mix: tuple[int, ...] = (70, 20, 10)
    """Per cent of small, medium and large requests."""
    ttft_slo_s: float = 1.0
    model: str | None = None
    exact: bool = True
    """See `load.Plan`."""
    headers: tuple[tuple[str, str], ...] = ()
    seed: int = 1


@dataclass(slots=True)
class Step:
    """So many clients that each ask again at once, and what they got."""

    clients: int
    completed: int
    requests_per_s: float
    error_ratio: float
    """Half of the 95 % interval, as a part of the rate."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    refused: int


@dataclass(slots=True)
class RateStep:
    """Requests at one rate, and how many of them had their first token in time."""

    requests_per_s: float
    offered: int
    on_time_ratio: float


@dataclass(slots=True)
class Measured:
    """What an engine can do with this mix."""

    model: str
    context_tokens: int
    sizes: tuple[tuple[str, int, int], ...]
    """Name, prompt and output tokens of each size that was sent."""
    mix: tuple[int, ...]
    ttft_slo_s: float
    ttft_base_s: float
    """First token of a request alone, apart from its prompt."""
    prefill_tokens_per_s: float | None
    """Prompt tokens read each second, alone; None where longer prompts took no longer."""
    tpot_alone_s: float | None
    ramp: list[Step]
    full: Step
    rates: list[RateStep]
    saturation_per_s: float | None
    """The highest rate that was tried at which `ON_TIME_RATIO` were in time; None: not even the lowest."""

    @property
    def is_wide(self) -> bool:
        """The service rate is known less well than within ±10 %."""
        return self.full.error_ratio > WIDE_RATIO


Tell = Callable[[str], None]


async def measure(order: Order, tell: Tell = lambda line: None) -> Measured:
    """All three parts. `tell` is called with a line for a person before each."""
    bench = await bench_of(order)
    served = bench.served
    tell(f"alone, for {order.duration_s * ALONE_RATIO:.0f} s")
    base_s, prefill_tokens_per_s, tpot_alone_s = await _alone(bench, order.duration_s * ALONE_RATIO)
    full_by_s = time.monotonic() + order.duration_s * (RAMP_RATIO + FULL_RATIO)
    ramp = await _ramp(bench, order, tell)
    clients = enough(ramp, order.ttft_slo_s)
    full_s = max(full_by_s - time.monotonic(), order.duration_s * FULL_RATIO)
    tell(f"kept full by {clients}, for {full_s:.0f} s")
    full = await bench.kept_full(clients, full_s)
    if not full.completed:
        raise LoadError("kept full, the engine completed nothing in that time: give it more minutes")
    rates = await _rising(bench, full.requests_per_s, order.duration_s * RATES_RATIO / len(RATE_STEPS), tell)
    kept = [step.requests_per_s for step in rates if step.on_time_ratio >= ON_TIME_RATIO]
    return Measured(
        model=served.model,
        context_tokens=served.context_tokens,
        sizes=bench.sizes,
        mix=order.mix,
        ttft_slo_s=order.ttft_slo_s,
        ttft_base_s=base_s,
        prefill_tokens_per_s=prefill_tokens_per_s,
        tpot_alone_s=tpot_alone_s,
        ramp=ramp,
        full=full,
        rates=rates,
        saturation_per_s=max(kept, default=None),
    )


async def bench_of(order: Order) -> Bench:
    """What sends the mix to an address, once it knows its model and what a word costs there. Raises `LoadError`."""
    plan = Plan(url=order.url, model=order.model, headers=order.headers, exact=order.exact, seed=order.seed)
    async with httpx.AsyncClient(base_url=base_of(order.url), headers=dict(order.headers), timeout=30.0) as client:
        served = await target(client, order.model, None)
        words = Words(order.seed, f"{time.time_ns() // 1_000_000 % 10**9:09d}")
        await calibrate(client, words, path_of(plan), {"model": served.model}, plan.chat)
    return Bench(order, plan, served, words)


def bench_at(order: Order, like: Bench) -> Bench:
    """The same at another address: that of a gateway, say, which would have to admit the two calls that size words."""
    plan = Plan(url=order.url, model=order.model, headers=order.headers, exact=order.exact, seed=order.seed)
    return Bench(order, plan, like.served, like.words)


async def _alone(bench: Bench, seconds: float) -> tuple[float, float | None, float | None]:
    """First token of nothing, prompt tokens a second, and seconds a token.

    The line goes through the fastest request of each size: alone, whatever else a machine does can only make one slower.
    """
    least: dict[int, tuple[int, float]] = {}
    each_s: list[float] = []
    until_s, sent = time.monotonic() + seconds, 0
    while sent < ALONE_MIN or time.monotonic() < until_s:
        size = sent % len(bench.sizes)
        attempt = await bench.one(size, LIMIT_S)
        sent += 1
        if attempt.end != COMPLETE:
            raise LoadError(f"a request alone ended as {attempt.end} ({attempt.status} {attempt.code}); is the key right?")
        if size not in least or attempt.ttft_s < least[size][1]:
            least[size] = attempt.prompt_tokens, attempt.ttft_s
        if attempt.output_tokens > 1:
            each_s.append((attempt.ended_s - attempt.first_token_s) / (attempt.output_tokens - 1))
    line = FittedLine(keep_ratio=1.0)
    for prompt_tokens, ttft_s in least.values():
        line.add(prompt_tokens, ttft_s)
    return line.intercept, 1.0 / line.slope if line.slope > 0.0 else None, spread(each_s).p50_s


def enough(ramp: list[Step], ttft_slo_s: float) -> int:
    """The fewest clients that bring nearly the most, of those whose first tokens are in time; one, where none are."""
    in_time = [step for step in ramp if step.ttft_p95_s is not None and step.ttft_p95_s <= ttft_slo_s] or ramp[:1]
    most_per_s = max(step.requests_per_s for step in in_time)
    return next(step.clients for step in in_time if step.requests_per_s >= NEARLY_RATIO * most_per_s)


async def _ramp(bench: Bench, order: Order, tell: Tell) -> list[Step]:
    """Twice the clients each time, until they bring no more or wait too long, or the engine refuses some."""
    steps: list[Step] = []
    clients, best_per_s, idle = 1, 0.0, 0
    step_s = order.duration_s * RAMP_RATIO / RAMP_STEPS
    while clients <= CLIENTS_MAX and len(steps) < RAMP_STEPS and idle < 2:
        tell(f"{clients} client{'s' if clients > 1 else ''}, for {step_s:.0f} s")
        step = await bench.kept_full(clients, step_s)
        steps.append(step)
        idle = 0 if step.requests_per_s > GAIN_MIN * best_per_s else idle + 1
        best_per_s = max(best_per_s, step.requests_per_s)
        if step.refused or (step.ttft_p95_s or 0.0) > order.ttft_slo_s:
            break
        clients *= 2
    if not best_per_s:
        raise LoadError("the engine completed nothing in any step: give it more minutes")
    return steps


async def _rising(bench: Bench, service_per_s: float, step_s: float, tell: Tell) -> list[RateStep]:
    """Rates one after the other, until the first at which too many are late."""
    steps: list[RateStep] = []
    for ratio in RATE_STEPS:
        tell(f"{ratio * service_per_s:.2f} requests/s, for {step_s:.0f} s")
        steps.append(await bench.at_rate(ratio * service_per_s, step_s))
        if steps[-1].on_time_ratio < ON_TIME_RATIO:
            break
    return steps


class Bench:
    """Sends requests of the mix and keeps what came of them."""

    def __init__(self, order: Order, plan: Plan, served: Target, words: Words) -> None:
        self._order = order
        self.served = served
        self._address = urlsplit(base_of(order.url))
        self.words = words
        self._question = '"messages":[{"role":"user","content":"%s"}]' if plan.chat else '"prompt":"%s"'
        self._fields = fields_of(plan, served)
        self._head = head_of(plan)
        self._random = Random(f"mix {order.seed}")  # noqa: S311 (an order of requests, not a secret)
        self._sent = 0
        self._block: list[int] = []
        largest_tokens = max(prompt + output for _, prompt, output in SIZES)
        factor = min(1.0, served.context_tokens * CONTEXT_RATIO / largest_tokens)
        self.sizes = tuple((name, max(1, int(prompt * factor)), max(1, int(output * factor))) for name, prompt, output in SIZES)
        self._pool = Pool(asyncio.get_running_loop(), self._address)

    async def one(self, size: int, patience_s: float) -> Attempt:
        """One request of this size, to its end."""
        _, prompt_tokens, output_tokens = self.sizes[size]
        self._sent += 1
        question = self._question % self.words.prompt(self._sent, prompt_tokens)
        body = f'{{{self._fields},"max_tokens":{output_tokens},{question}}}'.encode()
        return await self._pool.run(self._head % (0, len(body)) + body, patience_s, LIMIT_S)

    def _next_size(self) -> int:
        """The mix exactly, in every hundred: chance in the sizes would only widen what is measured."""
        if not self._block:
            self._block = [size for size, share in enumerate(self._order.mix) for _ in range(share)]
            self._random.shuffle(self._block)
        return self._block.pop()

    async def kept_full(self, clients: int, seconds: float) -> Step:
        """So many clients, each with one request at a time, for so long."""
        begun_s = time.monotonic()
        until_s = begun_s + seconds
        attempts: list[Attempt] = []
        running = [asyncio.create_task(self._ask_again(attempts, until_s)) for _ in range(clients)]
        await asyncio.wait(running, timeout=seconds)
        await self.hang_up(running)
        return _step(clients, attempts, begun_s + SETTLING_RATIO * seconds, until_s)

    async def _ask_again(self, attempts: list[Attempt], until_s: float) -> None:
        while time.monotonic() < until_s:
            attempt = await self.one(self._next_size(), LIMIT_S)
            attempts.append(attempt)
            if attempt.end in (REFUSED, UNCONNECTED):
                await asyncio.sleep(0.1)

    async def at_rate(self, requests_per_s: float, seconds: float) -> RateStep:
        """How many of those who come at that rate have their first token in time."""
        offered, attempts = await self.offered(requests_per_s, seconds)
        on_time = sum(1 for one in attempts if one.first_token_s and one.ttft_s <= self._order.ttft_slo_s)
        return RateStep(requests_per_s, offered, on_time / offered)

    async def offered(self, requests_per_s: float, seconds: float, settle_s: float = 0.0) -> tuple[int, list[Attempt]]:
        """Requests at random, whatever the engine does; who has no first token in time hangs up. `settle_s`: to end in."""
        tasks: list[asyncio.Task[None]] = []
        attempts: list[Attempt] = []
        at_s, until_s = time.monotonic(), time.monotonic() + seconds
        while at_s < until_s:
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            tasks.append(asyncio.create_task(self._ask_once(attempts)))
            at_s += self._random.expovariate(requests_per_s)
        await asyncio.wait(tasks, timeout=2.0 * self._order.ttft_slo_s + settle_s)
        await self.hang_up(tasks)
        return len(tasks), attempts

    async def _ask_once(self, attempts: list[Attempt]) -> None:
        attempts.append(await self.one(self._next_size(), 2.0 * self._order.ttft_slo_s))

    async def hang_up(self, tasks: list[asyncio.Task[None]]) -> None:
        """Leave every connection, so that the engine stops what is still running for this step."""
        self._pool.close()
        self._pool = Pool(asyncio.get_running_loop(), self._address)
        _, dialling = await asyncio.wait(tasks, timeout=HANG_UP_S)
        for task in dialling:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def _step(clients: int, attempts: list[Attempt], from_s: float, until_s: float) -> Step:
    """What was completed after the beginning. Gaps between completions make the rate and its interval."""
    whole = sorted(
        (one for one in attempts if one.end == COMPLETE and from_s <= one.ended_s <= until_s), key=lambda one: one.ended_s
    )
    rate = DrainRate(None, GAPS_KEPT, LIMIT_S)
    rate.granted(0, 0, True, from_s)
    for one in whole:
        rate.granted(one.prompt_tokens + one.output_tokens, 1, True, one.ended_s)
    span_s = until_s - from_s
    further_s = [(one.ended_s - one.first_token_s) / (one.output_tokens - 1) for one in whole if one.output_tokens > 1]
    return Step(
        clients=clients,
        completed=len(whole),
        requests_per_s=rate.requests_per_s or len(whole) / span_s,
        error_ratio=1.0 if rate.requests_error_ratio is None else rate.requests_error_ratio,
        prompt_tokens_per_s=sum(one.prompt_tokens for one in whole) / span_s,
        output_tokens_per_s=sum(one.output_tokens for one in whole) / span_s,
        ttft_p95_s=spread([one.ttft_s for one in whole]).p95_s,
        tpot_p50_s=spread(further_s).p50_s,
        refused=sum(1 for one in attempts if one.end == REFUSED),
    )

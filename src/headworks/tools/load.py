"""Offers recorded traffic to a URL and tells what its clients got.

Open loop: calls start when the trace says, however the server does, as people do. A client has patience: it hangs up
when no first token has come by then. It may ask again by the stock client's rules (`load_retry`). Nothing is decided
while it runs but that; every figure is made afterwards from the attempts (`load_figures`).
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from headworks.sim import traces
from headworks.tools import load_retry
from headworks.tools.load_engine import EngineSample, EngineWatch, LoadError, Target, Words, calibrate, target
from headworks.tools.load_wire import COMPLETE, REFUSED, UNCONNECTED, Attempt, Pool

PROGRESS_EVERY_S = 0.25
CALLS_MAX = 200_000
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS = frozenset(
    {"host", "content-type", "content-length", "transfer-encoding", "connection", "accept", "x-stainless-retry-count"}
)


@dataclass(slots=True)
class Plan:
    """What to offer, to whom, and what its clients want."""

    url: str
    """The server's base: scheme, host, port; a trailing /v1 is understood."""
    trace: str = "azure2023_conv"
    rate_per_s: float | None = None
    """Mean arrivals; None: the trace's own rate."""
    rate_times: float = 1.0
    """Multiplies the rate."""
    seconds: float = 30.0
    arrivals: str = "poisson"
    """`poisson`, or `trace`: its own arrivals, stretched."""
    patience_s: float = 2.0
    """An attempt without a first token by then is hung up. Counts from the attempt's start."""
    ttft_slo_s: float = 1.0
    limit_s: float = 60.0
    """An attempt that takes longer altogether is hung up."""
    retries: str = "none"
    """`none` or `sdk`."""
    retries_max: int = load_retry.RETRIES_MAX
    """The stock client's `max_retries`: a batch job sets many and goes on until `limit_s` after its first attempt."""
    chat: bool = True
    exact: bool = True
    """Ask for outputs of exact length (ignore_eos), which vLLM, SGLang and llama.cpp understand."""
    model: str | None = None
    context_tokens: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    engine_metrics: str | None = None
    seed: int = 1
    salt: str = ""
    """Starts every prompt. Two runs with one salt can meet the engine's prefix cache; empty: made from the clock."""


@dataclass(slots=True)
class Call:
    """What one client wanted and every attempt it made."""

    number: int
    row: traces.Row
    attempts: list[Attempt] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """What was offered and everything seen. Times are one clock; `started_s` is its zero."""

    plan: Plan
    target: Target
    rate_per_s: float
    calls: list[Call]
    started_s: float
    send_lags_s: list[float]
    samples: list[EngineSample]
    """The engine's gauges during the run; first and last are its counters before it and after it had settled."""
    generator_cpu_ratio: float


@dataclass(slots=True)
class Progress:
    """How far the run is, for a bar."""

    elapsed_s: float
    sent: int
    complete: int
    refused: int
    other: int


def base_of(url: str) -> str:
    """`http://host:port` of what was given; refuses what is not a URL."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise LoadError(f"{url or 'an empty text'} is no http or https URL")
    return f"{parts.scheme}://{parts.netloc}"


def rate_of(text: str) -> tuple[float | None, float]:
    """`11` is a rate in requests a second, `2x` a multiple of the trace's own."""
    try:
        rate = float(text.removesuffix("x"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise LoadError(f"--rate {text}: a number of requests a second, or a multiple of the trace's own rate as 2x")
    return (None, rate) if text.endswith("x") else (rate, 1.0)


OnProgress = Callable[[Progress], None]


async def run(plan: Plan, on_progress: OnProgress = lambda progress: None) -> Run:
    """Discover, calibrate, offer, wait for the last client, let the engine settle."""
    trace = traces.read(plan.trace)
    head_of(plan)  # what may not stand in it is said before anything is asked
    async with httpx.AsyncClient(base_url=base_of(plan.url), headers=dict(plan.headers), timeout=30.0) as client:
        served = await target(client, plan.model, plan.context_tokens)
        words = Words(plan.seed, plan.salt or f"{time.time_ns() // 1_000_000 % 10**9:09d}")
        await calibrate(client, words, path_of(plan), {"model": served.model}, plan.chat)
    rate_per_s = (plan.rate_per_s or trace.rate_per_s) * plan.rate_times
    rows = _rows(plan, traces.scaled(trace, served.context_tokens), rate_per_s)
    watch = EngineWatch(plan.engine_metrics) if plan.engine_metrics else None
    try:
        before = [await watch.begin()] if watch else []
        driver = _Driver(plan, served, words, [Call(number, row) for number, row in enumerate(rows)])
        cpu_s, clock_s = time.process_time(), time.monotonic()
        await _offered(driver, watch, on_progress)
        cpu_ratio = (time.process_time() - cpu_s) / (time.monotonic() - clock_s)
        after = [await watch.settled()] if watch else []
    finally:
        if watch:
            await watch.close()
    samples = [*before, *(watch.samples if watch else ()), *after]
    seen = [sample for sample in samples if sample is not None]
    return Run(plan, served, rate_per_s, driver.calls, driver.started_s, driver.send_lags_s, seen, cpu_ratio)


def path_of(plan: Plan) -> str:
    return "/v1/chat/completions" if plan.chat else "/v1/completions"


def _rows(plan: Plan, trace: traces.Trace, rate_per_s: float) -> list[traces.Row]:
    if rate_per_s * plan.seconds > CALLS_MAX:
        raise LoadError(f"{rate_per_s:.1f}/s for {plan.seconds:g} s is more than {CALLS_MAX} calls")
    offer = {"poisson": traces.poisson, "trace": traces.replayed}.get(plan.arrivals)
    if offer is None:
        raise LoadError(f"--arrivals {plan.arrivals}: poisson or trace")
    return offer(trace, rate_per_s=rate_per_s, seconds=plan.seconds, seed=plan.seed)


async def _offered(driver: _Driver, watch: EngineWatch | None, on_progress: OnProgress) -> None:
    # A collection in the middle of a run would look like the server's delay.
    gc.collect()
    gc.freeze()
    beside = [asyncio.create_task(_tell(driver, on_progress))]
    if watch:
        beside.append(asyncio.create_task(watch.run()))
    try:
        await driver.offer()
        for task in beside:
            if task.done():
                task.result()
    finally:
        for task in beside:
            task.cancel()
        driver.pool.close()
        gc.unfreeze()
    on_progress(driver.progress())


async def _tell(driver: _Driver, on_progress: OnProgress) -> None:
    while True:
        on_progress(driver.progress())
        await asyncio.sleep(PROGRESS_EVERY_S)


class _Driver:
    """Starts each call at its time and carries it through its attempts."""

    def __init__(self, plan: Plan, served: Target, words: Words, calls: list[Call]) -> None:
        self.calls = calls
        self.send_lags_s: list[float] = []
        self._plan = plan
        self._words = words
        self.pool = Pool(asyncio.get_running_loop(), urlsplit(base_of(plan.url)))
        self.started_s = time.monotonic()
        self._random = Random(f"backoff {plan.seed}")  # noqa: S311 (jitter, not a secret)
        self._fields = fields_of(plan, served)
        self._head = head_of(plan)
        self._ends: dict[str, int] = {}

    def progress(self) -> Progress:
        complete, refused = self._ends.get(COMPLETE, 0), self._ends.get(REFUSED, 0)
        other = sum(self._ends.values()) - complete - refused
        return Progress(time.monotonic() - self.started_s, len(self.send_lags_s), complete, refused, other)

    async def offer(self) -> None:
        """Returns when the last call's last attempt has ended; each is bounded by the plan's `limit_s`."""
        self.started_s = time.monotonic()
        async with asyncio.TaskGroup() as running:
            for call in self.calls:
                wait_s = self.started_s + call.row.t_s - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                self.send_lags_s.append(max(0.0, time.monotonic() - self.started_s - call.row.t_s))
                running.create_task(self._call(call))

    async def _call(self, call: Call) -> None:
        request_body = self._body(call)
        while True:
            retries = len(call.attempts)
            request = self._head % (retries, len(request_body)) + request_body
            attempt = await self.pool.run(request, self._plan.patience_s, self._plan.limit_s)
            call.attempts.append(attempt)
            self._ends[attempt.end] = self._ends.get(attempt.end, 0) + 1
            if self._plan.retries == "none" or attempt.end not in (REFUSED, UNCONNECTED):
                return
            wait_s = load_retry.wait_s(attempt.status, attempt.hints, retries, self._random, self._plan.retries_max)
            gives_up_s = call.attempts[0].started_s + self._plan.limit_s
            if wait_s is None or time.monotonic() + wait_s >= gives_up_s:
                return
            await asyncio.sleep(wait_s)

    def _body(self, call: Call) -> bytes:
        prompt = self._words.prompt(call.number, call.row.prompt_tokens)
        question = f'"messages":[{{"role":"user","content":"{prompt}"}}]' if self._plan.chat else f'"prompt":"{prompt}"'
        return f'{{{self._fields},"max_tokens":{call.row.output_tokens},{question}}}'.encode()


def fields_of(plan: Plan, served: Target) -> str:
    """The part of the body that is the same in every call, without its braces."""
    fields: dict[str, Any] = {
        "model": served.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    if plan.exact:
        fields["ignore_eos"] = True
    return msgspec.json.encode(fields).decode()[1:-1]


def head_of(plan: Plan) -> bytes:
    """The request's head, with places for the retry count and the body's length."""
    headers = [
        f"POST {path_of(plan)} HTTP/1.1",
        f"Host: {urlsplit(base_of(plan.url)).netloc}",
        "Content-Type: application/json",
        "Accept: application/json",
        *(f"{name}: {value}" for name, value in plan.headers),
    ]
    for name, value in plan.headers:
        if HEADER_NAME.fullmatch(name) is None or not (value.isascii() and value.isprintable()):
            raise LoadError(f"header {name!r}: {value!r} has characters that may not stand in one")
        if name.lower() in OWN_HEADERS:
            raise LoadError(f"header {name!r} is written by the driver itself")
    fixed = "\r\n".join(headers).replace("%", "%%")
    return f"{fixed}\r\nx-stainless-retry-count: %d\r\nContent-Length: %d\r\n\r\n".encode()

"""What an engine shows to somebody who only looks: its series, its flags as far as they can be seen, and its load over a while.

The load decides whether admission control is the right tool at all. An engine in which nothing has ever waited, whose memory
stays half empty and which never put a running request aside, carries what it is asked to: in front of it a gateway that
decides is one more hop. That is said only about what was watched; an engine that nobody used says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headworks.engines import llamacpp, vllm
from headworks.engines.base import EngineError
from headworks.engines.look import look
from headworks.engines.metrics_text import series, value
from headworks.engines.pool import Pool
from headworks.tools.doctor_report import BROKEN, HOLDS, NOTE, UNKNOWN, Finding, Flag
from headworks.tools.doctor_wire import Ward

SERIES = {"vllm": vllm.SERIES, "llamacpp": llamacpp.SERIES}
LOOK_EVERY_S = 0.25
STEADY_KV_RATIO = 0.5
STEADY_QUEUE_S = 0.05
"""A request that spends less than this in the engine's own queue did not wait for anybody."""
ANSWERS_MIN = 20
"""Fewer answers than this say nothing of how an engine is used."""
FINISHED = b"vllm:request_success_total"
QUEUE_SUM, QUEUE_COUNT = b"vllm:request_queue_time_seconds_sum", b"vllm:request_queue_time_seconds_count"
PREEMPTIONS = b"vllm:num_preemptions_total"
TURNED_AWAY = b"vllm:admission_rejections_total"

Number = TypeVar("Number", int, float)


@dataclass(slots=True)
class Watched:
    """What was seen of the load in a while."""

    watch_s: float
    samples: int
    running_max: int | None
    waiting_max: int | None
    kv_max_ratio: float | None
    before: bytes
    """The pages at both ends; empty where there are none."""
    after: bytes
    incarnations: tuple[str, ...]

    @property
    def is_busy(self) -> bool:
        """Somebody uses it."""
        return bool(self.running_max or self.waiting_max)


async def watched(ward: Ward, seconds: float) -> Watched:
    """Look, four times a second, and send nothing."""
    begun_s, before = time.monotonic(), await page(ward.plain)
    running: int | None = None
    waiting: int | None = None
    ratio: float | None = None
    count, incarnations = 0, dict[str, None]()
    while True:
        sample = await ward.engine.sample()
        count += 1
        running, waiting = larger(running, sample.running), larger(waiting, sample.waiting)
        ratio = larger(ratio, sample.kv_used_ratio)
        incarnations[sample.incarnation] = None
        if time.monotonic() - begun_s + LOOK_EVERY_S > seconds:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    after = await page(ward.plain)
    names = tuple(incarnations)[:4]
    return Watched(time.monotonic() - begun_s, count, running, waiting, ratio, before, after, names)


def larger(one: Number | None, other: Number | None) -> Number | None:
    """Of those that are known."""
    return other if one is None else one if other is None else max(one, other)


async def page(pool: Pool) -> bytes:
    """Its metrics, or nothing."""
    try:
        seen = await look(pool, "/metrics")
    except EngineError:
        return b""
    return seen.payload if seen.status == 200 else b""


def series_finding(kind: str, text: bytes, notes: tuple[str, ...]) -> Finding:
    """Whether everything the adapter reads is there, under the names it knows."""
    wanted = SERIES.get(kind)
    if wanted is None:
        why = "its loads are JSON, not series" if kind == "sglang" else "it shows no series that are known"
        return Finding("metric names", NOTE, f"{why}. {'; '.join(notes)}".strip())
    missing = [
        f"{names[0].decode()} ({purpose})"
        for names, purpose in wanted
        if not any(next(series(text, name), None) for name in names)
    ]
    if not missing:
        return Finding("metric names", HOLDS, f"all {len(wanted)} series that are read are there")
    mend = "start it without --disable-log-stats and with one API server" if kind == "vllm" else ""
    return Finding("metric names", BROKEN, f"missing: {', '.join(missing)}", mend)


def incarnation_finding(seen: Watched, again: str) -> Finding:
    """Whether one life of the server can be told from the next."""
    if len(seen.incarnations) > 1 or again not in seen.incarnations:
        names = ", ".join(dict.fromkeys((*seen.incarnations, again)))
        saw = f"its start time changed while nothing was restarted ({names}): several engines answer at this address"
        return Finding("incarnation", BROKEN, saw, "give headworks each engine by its own address, not a load balancer")
    if "unknown" in again.split("/"):
        return Finding("incarnation", UNKNOWN, "it does not say when it was started, so a restart proves nothing (no E4)")
    return Finding("incarnation", HOLDS, f"{again}, the same in {seen.samples + 1} looks")


def load_finding(seen: Watched) -> Finding:
    """Whether there is anything for admission control to do, by what was watched and by the counters since its start."""
    window, life = _Use.between(seen.before, seen.after, seen.watch_s), _Use.since_start(seen.after)
    figures: dict[str, float | int | str | None] = {
        "watch_s": round(seen.watch_s, 1),
        "running_max": seen.running_max,
        "waiting_max": seen.waiting_max,
        "kv_max_ratio": seen.kv_max_ratio,
        "answers": window.answers,
        "answers_since_start": life.answers,
        "queue_mean_s_since_start": life.queue_mean_s,
        "preemptions_since_start": life.preemptions,
        "turned_away_since_start": life.turned_away,
    }
    for use, when in ((window, f"in {seen.watch_s:.0f} s"), (life, "since its start")):
        pressed = use.pressed()
        if pressed:
            return Finding("load", HOLDS, f"{when} {pressed}: there is something to decide", figures=figures)
    if (seen.waiting_max or 0) > 0:
        saw = f"up to {seen.waiting_max} waited inside it in {seen.watch_s:.0f} s: there is something to decide"
        return Finding("load", HOLDS, saw, figures=figures)
    enough = max(window.answers or 0, life.answers or 0) >= ANSWERS_MIN and life.queue_mean_s is not None
    if enough and (seen.kv_max_ratio or 0.0) <= STEADY_KV_RATIO:
        saw = (
            f"{life.answers} answers since its start and nothing ever waited (mean {(life.queue_mean_s or 0.0) * 1000:.1f} ms"
            " in its queue, nothing put aside or turned away): the load is below what it carries"
        )
        mend = (
            "admission control is the wrong tool for a steady load below capacity: it would be one more hop. Leave it out, or"
            " run it with --observe until a busier hour has been watched (--watch 600)"
        )
        return Finding("load", NOTE, saw, mend, figures)
    saw = f"too little was seen in {seen.watch_s:.0f} s and since its start to say whether admission control has anything to do"
    return Finding("load", UNKNOWN, saw, "watch its busiest hour: --passive --watch 600", figures)


@dataclass(slots=True)
class _Use:
    """An engine's own counters over some time. None: it does not count that."""

    answers: int | None
    queue_mean_s: float | None
    preemptions: int | None
    turned_away: int | None

    @staticmethod
    def since_start(text: bytes) -> _Use:
        return _Use._of(lambda name: value(text, name))

    @staticmethod
    def between(before: bytes, after: bytes, seconds: float) -> _Use:
        def grown(name: bytes) -> float | None:
            then, now = value(before, name), value(after, name)
            return None if then is None or now is None else max(0.0, now - then)

        return _Use._of(grown)

    @staticmethod
    def _of(counted: Callable[[bytes], float | None]) -> _Use:
        waits, waited_s = counted(QUEUE_COUNT), counted(QUEUE_SUM)
        mean_s = waited_s / waits if waits and waited_s is not None else None
        return _Use(_whole(counted(FINISHED)), mean_s, _whole(counted(PREEMPTIONS)), _whole(counted(TURNED_AWAY)))

    def pressed(self) -> str:
        """What shows that it was asked for more than it carries; empty where nothing does."""
        if self.preemptions:
            return f"{self.preemptions} running requests were put aside for memory"
        if self.turned_away:
            return f"{self.turned_away} requests were turned away by its own limit"
        if self.queue_mean_s is not None and self.queue_mean_s > STEADY_QUEUE_S:
            return f"a request waited {self.queue_mean_s:.2f} s in its queue on average"
        return ""


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


async def flags_seen(ward: Ward, text: bytes, version: str) -> list[Flag]:
    """What can be told from the pages; what only a request shows is added by those who sent it."""
    flags = [Flag("version", version, "its own word")]
    if ward.kind == "vllm":
        config: dict[str, str] = next((labels for labels, _ in series(text, b"vllm:cache_config_info")), {})
        flags += [Flag(name, config.get(label), "vllm:cache_config_info") for name, label in VLLM_LABELS]
        if config.get("enable_prefix_caching") == "False":
            flags[1].advice = "leave it on (its default): prompts that begin alike are read once"
        several = value(text, b"process_start_time_seconds") is None
        advice = "one API server: with more there is no start time, so a restart proves nothing" if several else ""
        flags.append(Flag("--api-server-count", "over 1" if several else "1", "process_start_time_seconds", advice))
        if (await look(ward.plain, "/server_info")).status == 200:
            advice = "unset it in service, or keep this port where only headworks reaches it: these routes ask for no key"
            flags.append(Flag("VLLM_SERVER_DEV_MODE", "1", "/server_info answers", advice))
    return flags


VLLM_LABELS = (  # the first one has advice of its own
    ("--enable-prefix-caching", "enable_prefix_caching"),
    ("--block-size", "block_size"),
    ("num_gpu_blocks", "num_gpu_blocks"),
    ("--gpu-memory-utilization", "gpu_memory_utilization"),
    ("--kv-cache-dtype", "cache_dtype"),
    ("kv_cache_memory_bytes", "kv_cache_memory_bytes"),
    ("kv_cache_size_tokens", "kv_cache_size_tokens"),
)

"""Whether what a client leaves really stops: the proof on which headworks gives capacity back, tried on the engine itself.

Three answers are possible, and the second is the dangerous one:

* the gauges fall long before the answer could have ended: it stops;
* the server lets the connection go, its steps go on, and the gauges do not fall: it, or something before it, closes and
  works on. The clock proof (E3a) would then free what is still in use;
* nothing happens: a client that left is not noticed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from headworks.tools.doctor_answers import GAUGES_SETTLE_S, Measured
from headworks.tools.doctor_report import BROKEN, HOLDS, NOTE, UNKNOWN, Finding, Flag
from headworks.tools.doctor_wire import FIRST_TOKEN_S_MAX, Sent, Ward, load_of

ITERATIONS_MIN = 4
"""What the gate asks of the clock before it believes a stop (E3a)."""
LEFT_ANSWER_S = 3.0
"""So long would an answer take that is left at its beginning; it has to have stopped within half of that."""
LEFT_TOKENS_MIN, LEFT_TOKENS_MAX = 200, 2_000
PATIENCE_S_MIN, PATIENCE_S_MAX = 0.5, 6.0
QUIET_LOOK_S = 1.2
"""llama.cpp looks at a connection without a stream only when nobody asked it anything for a second."""
IDLE_S_MAX = 60.0
CROWD_TOKENS = 400
CROWD_S_MAX = 20.0
CROWD_SETTLED_S, CROWD_STEPS = 1.5, 16
"""No further one begins for so long, and in so many steps, while some wait: those are its places."""
PLACES_FLAGS = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "llamacpp": "--parallel"}
BROKEN_WORDS = "CANCELLATION IS BROKEN"
NAMES = {"half": "abort on half-close", "close": "abort on disconnect", "body": "abort without a stream"}


@dataclass(slots=True)
class Left:
    """One request that was left, and what the engine showed then. Seconds are from the leaving on."""

    how: str
    natural_s: float
    """So long would it have gone on."""
    steps_natural: int | None = None
    """In so many steps of the engine it would have ended by itself, as far as that is known."""
    gone_s: float | None = None
    """Until the gauges showed nothing any more, and not because it had come to its end."""
    kv_before_ratio: float | None = None
    kv_after_ratio: float | None = None
    """What its memory showed before it began, and when it was gone."""
    over: str = ""
    over_s: float | None = None
    """Until its server let the connection go."""
    steps_while_inside: int | None = None
    """How far its clock had moved at the last look that still showed the request."""
    steps_after_close: int | None = None
    """The same from the first look that was begun after its server had let the connection go, as a clock proof counts."""

    @property
    def patience_s(self) -> float:
        """Whoever is inside for longer was not stopped; it would have ended by itself only later."""
        return min(PATIENCE_S_MAX, max(PATIENCE_S_MIN, self.natural_s / 2.0))


@dataclass(slots=True)
class Rounds:
    """All of one kind."""

    lefts: list[Left] = field(default_factory=list)
    unsaid: str = ""
    """Why it could not be tried."""

    @property
    def stopped(self) -> bool:
        """Every one, in time."""
        return bool(self.lefts) and all(left.gone_s is not None for left in self.lefts)

    @property
    def clock_lied(self) -> bool:
        """By its clock one had stopped that was still inside."""
        return any((left.steps_after_close or 0) >= ITERATIONS_MIN for left in self.lefts)


async def rounds_of(ward: Ward, seen: Measured, how: str, times: int) -> Rounds:
    """Start one, leave it, watch; so many times, or until one did not stop."""
    rounds = Rounds()
    if seen.gauges_follow is not True:
        rounds.unsaid = "its gauges do not show what is inside"
        return rounds
    for _ in range(times):
        if await ward.until_load(lambda inside: inside == 0, IDLE_S_MAX, 0.05) is None:
            rounds.unsaid = "something else runs in it"
            break
        left = await _left(ward, seen, how)
        if isinstance(left, str):
            rounds.unsaid = f"a request to be left did not begin: {left}"
            break
        rounds.lefts.append(left)
        if left.gone_s is None:
            break
    return rounds


async def _left(ward: Ward, seen: Measured, how: str) -> Left | str:
    """What became of it, or why it did not begin."""
    tpot_s = seen.tpot_s or 0.01
    quiet = how == "body" and ward.kind == "llamacpp"
    natural_s = LEFT_ANSWER_S * (3.0 if quiet else 1.0)
    room = max(LEFT_TOKENS_MIN, int(ward.context_tokens * 0.9) - 64)
    tokens = min(LEFT_TOKENS_MAX, room, max(LEFT_TOKENS_MIN, int(natural_s / tpot_s)))
    kv_before_ratio = (await ward.engine.sample()).kv_used_ratio
    sent = ward.start(tokens, stream=how != "body", through_adapter=how == "half")
    if how == "body":
        begun = await ward.until_load(lambda inside: inside > 0, FIRST_TOKEN_S_MAX)
        if begun is None:
            sent.close()
            return sent.heard.said()
    else:
        await sent.heard.until(lambda heard: heard.first_s is not None or bool(heard.over), FIRST_TOKEN_S_MAX)
        if sent.heard.first_s is None or await ward.until_load(lambda inside: inside > 0, 1.0) is None:
            sent.close()
            return sent.heard.said()
    return await _watched(
        ward,
        sent,
        Left(how, tokens * tpot_s, int(tokens * seen.steps_per_token), kv_before_ratio=kv_before_ratio),
        QUIET_LOOK_S if quiet else 0.005,
    )


async def _watched(ward: Ward, sent: Sent, left: Left, every_s: float) -> Left:
    before = (await ward.engine.sample()).iterations
    begun_s = time.monotonic()
    sent.half_close() if left.how == "half" else sent.close()
    closed: tuple[int, ...] | None = None
    while time.monotonic() - begun_s <= left.patience_s:
        await asyncio.sleep(every_s)
        is_closed = sent.heard.over == "closed"
        sample = await ward.engine.sample()
        steps = None if sample.iterations is None or before is None else sum(sample.iterations) - sum(before)
        if load_of(sample) == 0:
            if (
                left.steps_natural is None or (steps or 0) < left.steps_natural / 2.0
            ):  # else it has run to its end, faster than was thought
                left.gone_s, left.kv_after_ratio = time.monotonic() - begun_s, sample.kv_used_ratio
            break
        if steps is not None and sample.iterations is not None:
            left.steps_while_inside = steps
            if is_closed:
                closed = closed or sample.iterations
                left.steps_after_close = sum(sample.iterations) - sum(closed)
    await sent.heard.until(lambda heard: bool(heard.over), GAUGES_SETTLE_S)
    left.over = sent.heard.over
    left.over_s = sent.heard.over_s - begun_s if left.over else None
    if left.gone_s is None:
        sent.close()
    return left


def stop_finding(rounds: Rounds, how: str) -> Finding:
    """What the rounds of one kind say."""
    name = NAMES[how]
    if not rounds.lefts:
        return Finding(name, UNKNOWN, f"not tried: {rounds.unsaid}")
    gone_s = sorted(left.gone_s for left in rounds.lefts if left.gone_s is not None)
    tried = len(rounds.lefts)
    figures: dict[str, float | int | str | None] = {"tried": tried, "stopped": len(gone_s), **_memory(rounds)}
    if rounds.clock_lied:
        last = max(rounds.lefts, key=lambda left: left.steps_after_close or 0)
        saw = f"{BROKEN_WORDS}: the connection was closed, {last.steps_after_close} steps followed, and it was still inside"
        mend = "something between closes and lets it run on (a proxy, a middleware that swallows http.disconnect): take it out"
        return Finding(name, BROKEN, saw, mend, figures)
    if rounds.stopped:
        figures |= {"gone_p50_s": gone_s[tried // 2], "gone_max_s": gone_s[-1]}
        steps = [left.steps_while_inside for left in rounds.lefts if left.steps_while_inside is not None]
        figures["steps_max"] = max(steps, default=None)
        shown = f", {figures['steps_max']} steps later at most" if steps and how == "half" else ""
        saw = f"{tried} of {tried} stopped: {gone_s[tried // 2] * 1000:.0f} ms in the middle, {gone_s[-1] * 1000:.0f} at most"
        return Finding(name, HOLDS, saw + shown, figures=figures)
    last = rounds.lefts[-1]
    noticed = "its connection was let go, but " if last.over == "closed" else ""
    saw = f"{BROKEN_WORDS}: {noticed}{last.patience_s:.1f} s after the client had gone its request was still inside"
    mend = "until that is mended serve it as `engine: openai`, `evidence_min: E1`: answers that were left are read to their end"
    return Finding(name, BROKEN, saw, mend if how == "half" else "", figures)


def _memory(rounds: Rounds) -> dict[str, float | int | str | None]:
    """The most that memory showed beyond what it had shown before, once a request was gone."""
    kept = [
        left.kv_after_ratio - left.kv_before_ratio
        for left in rounds.lefts
        if left.kv_after_ratio is not None and left.kv_before_ratio is not None
    ]
    return {"kv_kept_max_ratio": max(0.0, *kept)} if kept else {}


async def crowd_findings(ward: Ward, streams: int, flags: list[Flag]) -> list[Finding]:
    """Many at once: how many run, what it says when it is full, and whether all of them stop when they are left."""
    crowd = [ward.start(CROWD_TOKENS) for _ in range(streams)]
    seen = await _settled(ward, crowd)
    refused = [sent for sent in crowd if sent.heard.over == "end" and not sent.heard.is_whole()]
    left_s = time.monotonic()
    for sent in crowd:
        sent.half_close()
    gone = await ward.until_load(lambda inside: inside == 0, IDLE_S_MAX, 0.02)
    places = _places(seen)
    if ward.kind in PLACES_FLAGS and seen.settled:
        value = str(seen.running) if seen.waiting else f"at least {seen.running}"
        flags.append(Flag(PLACES_FLAGS[ward.kind], value, f"{streams} streams at once"))
    return [places, _busy(ward, refused, streams, flags), _all_gone(gone, streams - len(refused), time.monotonic() - left_s)]


@dataclass(slots=True)
class _Crowd:
    """What was seen of many at once."""

    streams: int
    running: int = 0
    """The most that ran at once."""
    waiting: int = 0
    """The most that waited while so many ran."""
    late: int = 0
    """Those of whom nothing had been seen at the end."""
    settled: bool = False
    """All were answered; or some waited, and for many steps of the engine nobody else began."""


async def _settled(ward: Ward, crowd: list[Sent]) -> _Crowd:
    seen = _Crowd(len(crowd))
    begun_s = grown_s = time.monotonic()
    grown_steps = 0
    while time.monotonic() - begun_s < CROWD_S_MAX and not seen.settled:
        answered = sum(1 for sent in crowd if sent.heard.over or sent.heard.first_s is not None)
        sample = await ward.engine.sample()  # begun after that: where all are answered it shows the last who began
        steps = sum(sample.iterations or ())
        if (sample.running or 0) > seen.running:
            seen.running, seen.waiting, grown_s, grown_steps = sample.running or 0, 0, time.monotonic(), steps
        if sample.running == seen.running:
            seen.waiting = max(seen.waiting, sample.waiting or 0)
        over = sum(1 for sent in crowd if sent.heard.over)
        seen.late = len(crowd) - max(answered, over + (load_of(sample) or 0))
        # Prompts are let in a batch at a time: who waits for that waits for no place.
        quiet = time.monotonic() - grown_s > CROWD_SETTLED_S and (steps - grown_steps >= CROWD_STEPS or not steps)
        seen.settled = answered == len(crowd) or (bool(seen.waiting) and seen.late <= 0 and quiet)
        await asyncio.sleep(0.01)
    return seen


def _places(seen: _Crowd) -> Finding:
    figures: dict[str, float | int | str | None] = {
        "running_max": seen.running,
        "waiting": seen.waiting,
        "streams": seen.streams,
    }
    if not seen.settled:
        saw = f"after {CROWD_S_MAX:g} s {seen.running} of {seen.streams} streams ran and others were still being let in"
        return Finding("places", UNKNOWN, f"{saw}: is its machine busy with something else?", figures=figures)
    if seen.waiting:
        return Finding("places", NOTE, f"{seen.running} run at once, {seen.waiting} waited inside it", figures=figures)
    saw = f"{seen.running} of {seen.streams} streams ran at once and none waited: it has at least so many places"
    return Finding("places", NOTE, saw, figures=figures)


def _busy(ward: Ward, refused: list[Sent], streams: int, flags: list[Flag]) -> Finding:
    """Its own answer when it is full has to be told from a failure: nothing was started, so it may be tried elsewhere."""
    limit = "--max-num-queued-reqs" if ward.kind == "vllm" else "--max-queued-requests" if ward.kind == "sglang" else ""
    if not refused:
        if limit:
            advice = f"set it to the pool's active_requests_max and some more: a second wall (not reached by {streams} streams)"
            flags.append(Flag(limit, None, f"{streams} streams were all taken", advice))
        return Finding("busy answer", UNKNOWN, f"{streams} streams were all taken, so it was not seen")
    if limit:
        flags.append(Flag(limit, str(streams - len(refused)), f"{len(refused)} of {streams} streams were refused"))
    strange = [sent for sent in refused if not ward.engine.is_busy(sent.heard.status, sent.heard.payload)]
    if strange:
        saw = f"{len(strange)} of {streams} were refused in words that are not known: {strange[0].heard.said()}"
        return Finding("busy answer", BROKEN, saw, "headworks takes that for a failure of the engine, not for overload")
    heard = refused[0].heard
    hint = "with" if b"retry-after" in heard.headers else "without"
    return Finding(
        "busy answer", HOLDS, f"{len(refused)} of {streams} were told {heard.status}, {hint} Retry-After; understood"
    )


def _all_gone(gone_s: float | None, streams: int, waited_s: float) -> Finding:
    name = "abort of a crowd"
    if gone_s is None:
        return Finding(name, BROKEN, f"of {streams} streams that left at once some were inside after {waited_s:.0f} s")
    return Finding(name, HOLDS, f"{streams} streams left at once; all were gone after {gone_s * 1000:.0f} ms",
                   figures={"streams": streams, "gone_s": gone_s})  # fmt: skip

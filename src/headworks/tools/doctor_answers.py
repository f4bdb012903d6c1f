"""What an engine's answers show: their usage, their ids, its clock while it works, and how long its steps may be."""

from __future__ import annotations

import asyncio
import time

from headworks.core.types import ReplicaSample
from headworks.tools.doctor_report import BROKEN, HOLDS, NOTE, UNKNOWN, Finding, Flag
from headworks.tools.doctor_wire import ANSWER_S_MAX, FIRST_TOKEN_S_MAX, Heard, Sent, Ward, load_of

BODY_TOKENS, STREAM_TOKENS = 16, 48
PROMPT_WORDS = 24
GAUGES_SETTLE_S = 0.3
LONG_PROMPT_RATIO = 0.6
"""Of the context: a prompt that takes several steps where steps are bounded."""
STEP_S_MAX = 0.25
"""A clock proof takes a few steps: with longer ones what was left stays charged for a second."""
BESIDE_TOKENS = 3_000
WHOLE_RATIO = 0.95
"""A stream that stood still for this much of the reading saw all of it as one step."""
BATCH_FLAGS = {"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size", "llamacpp": "--batch-size"}


class Measured:
    """What later checks need of the first answers."""

    def __init__(self) -> None:
        self.answers_whole = False
        self.tpot_s: float | None = None
        self.ttft_s: float | None = None
        self.read_s: float | None = None
        self.read_tokens = 0
        self.steps_per_token = 1.0
        """Of a stream alone: less where a step writes several."""
        self.gauges_follow: bool | None = None
        """The load was seen while something ran; None: it shows no load."""
        self.stops = False
        """What was left half-way stopped, every time, by the gauges."""
        self.clock_moves: bool | None = None
        self.step_s: float | None = None
        """The longest step that was seen: a part of a long prompt, or all of it."""


async def body_finding(ward: Ward, seen: Measured, flags: list[Flag]) -> Finding:
    """An answer in one piece, and its usage."""
    sent = ward.start(BODY_TOKENS, words=PROMPT_WORDS, stream=False)
    await sent.heard.until(lambda heard: bool(heard.over), ANSWER_S_MAX)
    if not sent.heard.is_whole():
        return Finding("answer in one piece", BROKEN, sent.heard.said(), "is the model one that writes, and the key right?")
    usage = sent.heard.usage()
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(output, int) or prompt <= 0:
        return Finding(
            "answer in one piece", BROKEN, f"no usage in it ({usage})", "headworks settles by usage: is it a proxy's?"
        )
    seen.answers_whole = True
    ward.word_tokens_mean = prompt / PROMPT_WORDS
    details = usage.get("prompt_tokens_details")
    if ward.kind == "vllm":
        shown = isinstance(details, dict)
        advice = "" if shown else "set it: what a prompt had in the cache is then counted as cached, not as read"
        flags.append(Flag("--enable-prompt-tokens-details", "set" if shown else "not set", "usage of an answer", advice))
    return Finding(
        "answer in one piece", HOLDS, f"{prompt} tokens in and {output} out by its usage", figures={"output_tokens": output}
    )


async def stream_findings(ward: Ward, seen: Measured, flags: list[Flag]) -> list[Finding]:
    """A stream: its end, its usage, its id; and what gauges and clock showed meanwhile."""
    idle = await ward.engine.sample()
    await asyncio.sleep(GAUGES_SETTLE_S)
    still = await ward.engine.sample()
    sent = ward.start(STREAM_TOKENS)
    await sent.heard.until(lambda heard: heard.first_s is not None or bool(heard.over), FIRST_TOKEN_S_MAX)
    begun_s, during = time.monotonic(), await ward.engine.sample()
    while not sent.heard.over and time.monotonic() - begun_s < ANSWER_S_MAX:
        inside = load_of(during)
        if inside:
            seen.gauges_follow = True
        during = await ward.engine.sample()
        await asyncio.sleep(0.005)
    await sent.heard.until(lambda heard: bool(heard.over), ANSWER_S_MAX)
    await asyncio.sleep(GAUGES_SETTLE_S)
    after = await ward.engine.sample()
    if load_of(after) is None:
        seen.gauges_follow = None
    elif load_of(after) or not seen.gauges_follow:
        seen.gauges_follow = False
    return [_stream(sent, seen), _ids(ward, sent, flags), _clock(ward, seen, idle, still, after), _gauges(seen)]


def _stream(sent: Sent, seen: Measured) -> Finding:
    heard = sent.heard
    if not heard.is_whole():
        seen.answers_whole = False
        return Finding("stream", BROKEN, heard.said(), "an answer that ends without its finish reason cannot be settled")
    usage, pieces = heard.usage(), _pieces(heard)
    output = usage.get("completion_tokens")
    if not isinstance(output, int):
        seen.answers_whole = False
        return Finding("stream", BROKEN, "no usage at its end, though stream_options.include_usage was asked", "")
    assert heard.first_s is not None
    seen.ttft_s = heard.first_s - sent.sent_s
    seen.tpot_s = (heard.last_s - heard.first_s) / max(1, output - 1)
    merged = f", {output / pieces:.1f} tokens an event" if pieces else ""
    saw = f"{output} tokens by its usage, {seen.tpot_s * 1000:.1f} ms each{merged}"
    return Finding("stream", HOLDS, saw, figures={"output_tokens": output, "tpot_s": seen.tpot_s})


def _pieces(heard: Heard) -> int:
    return sum(1 for event in heard.events() if event.get("choices"))


def _ids(ward: Ward, sent: Sent, flags: list[Flag]) -> Finding:
    """Whether the name that headworks gives an execution can be found in the engine's answers and logs."""
    name = next((str(event["id"]) for event in sent.heard.events() if event.get("id")), "")
    echoed = sent.heard.headers.get(b"x-request-id", b"").decode("latin-1")
    if ward.kind == "vllm":
        advice = "" if echoed else "set it: what stands between then sees whose answer it is"
        flags.append(Flag("--enable-request-id-headers", "set" if echoed else "not set", "X-Request-Id of an answer", advice))
    if sent.execution in name or sent.execution in echoed:
        return Finding("request ids", HOLDS, f"X-Request-Id becomes {name.replace(sent.execution, 'ID') or 'its own header'}")
    return Finding("request ids", NOTE, f"it calls the answer {name[:40] or 'nothing'}, whatever X-Request-Id says")


def _clock(ward: Ward, seen: Measured, idle: ReplicaSample, still: ReplicaSample, after: ReplicaSample) -> Finding:
    """It counts its steps: none while nothing runs, some while something does."""
    if idle.iterations is None or still.iterations is None or after.iterations is None:
        return Finding("clock", UNKNOWN, "it counts no steps that are shown, so there is no clock proof (E3a)")
    moved = sum(after.iterations) - sum(still.iterations)
    seen.clock_moves = moved > 0
    seen.steps_per_token = min(1.0, moved / STREAM_TOKENS)
    if idle.iterations != still.iterations:
        return Finding("clock", NOTE, "its step counter moves while nothing is known to run: does somebody else use it?")
    if not seen.clock_moves:
        return Finding("clock", BROKEN, "its step counter stood still while it wrote an answer, so nothing is proved by it")
    saw = f"{moved} steps for {STREAM_TOKENS} tokens, none in {GAUGES_SETTLE_S:g} s without work"
    return Finding("clock", HOLDS, saw, figures={"steps": moved})


def _gauges(seen: Measured) -> Finding:
    if seen.gauges_follow is None:
        return Finding("load gauges", UNKNOWN, "it does not show what is inside, so there is no counting proof (E3b)")
    if not seen.gauges_follow:
        saw = "they did not show a request while it ran, or showed one after it had ended"
        return Finding("load gauges", BROKEN, saw, "is /metrics cached, or that of another engine?")
    return Finding("load gauges", HOLDS, "they showed the request while it ran and nothing after it")


async def step_finding(ward: Ward, seen: Measured, flags: list[Flag]) -> Finding:
    """How long one step can be: how long a stream stands still while a long prompt is read beside it.

    The step counter cannot tell: vLLM's counts the steps that give somebody a token, and the parts of a prompt give none.
    """
    words = max(1, int(ward.context_tokens * LONG_PROMPT_RATIO / ward.word_tokens_mean))
    beside = ward.start(min(BESIDE_TOKENS, ward.context_tokens // 2))
    await beside.heard.until(lambda heard: heard.first_s is not None or bool(heard.over), FIRST_TOKEN_S_MAX)
    beside.heard.gap_max_s = 0.0
    begun_s = time.monotonic()
    sent = ward.start(1, words=words)
    await sent.heard.until(lambda heard: bool(heard.over), ANSWER_S_MAX)
    seen.read_s = (sent.heard.first_s or time.monotonic()) - begun_s
    is_beside = not beside.heard.over
    beside.half_close()
    prompt = sent.heard.usage().get("prompt_tokens")
    if not sent.heard.is_whole() or not isinstance(prompt, int):
        return Finding("steps", UNKNOWN, f"a long prompt was not answered: {sent.heard.said()}")
    seen.read_tokens = prompt
    read = f"{prompt:,} tokens were read in {seen.read_s:.2f} s"
    if not is_beside:
        return Finding("steps", UNKNOWN, f"{read}; the stream beside it ended too early to show how long a step is")
    seen.step_s = min(seen.read_s, beside.heard.gap_max_s)
    return _steps(ward, flags, prompt, seen.read_s, seen.step_s, read)


def _steps(ward: Ward, flags: list[Flag], prompt: int, read_s: float, step_s: float, read: str) -> Finding:
    parted = step_s < WHOLE_RATIO * read_s
    step_tokens = int(prompt * step_s / read_s) if parted else prompt
    advice = ""
    if step_s > STEP_S_MAX:
        fitting = max(64, int(prompt / read_s * STEP_S_MAX))
        advice = f"about {fitting}: a step then takes {STEP_S_MAX:g} s, and the proof of a stop a few of them"
    if ward.kind in BATCH_FLAGS:
        about = f"about {step_tokens:,}" if parted else f"at least about {prompt:,}"
        how = "how long a stream stood still while a long prompt was read"
        flags.append(Flag(BATCH_FLAGS[ward.kind], about, how, advice))
    if ward.kind == "vllm":
        chunked = "on" if parted else f"not visible: {prompt:,} tokens fit into one step, or it is off"
        flags.append(Flag("--enable-chunked-prefill", chunked, "the same prompt"))
    saw = f"{read}; a stream beside it stood still for {step_s:.3f} s at most: so long can one step be"
    figures: dict[str, float | int | str | None] = {"prompt_tokens": prompt, "read_s": read_s, "step_s": step_s}
    return Finding("steps", HOLDS if step_s <= STEP_S_MAX else NOTE, saw, advice, figures)

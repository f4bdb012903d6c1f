"""What the load driver learns from the other side: the model, its context, what words cost in tokens, and the engine's gauges.

Prompts are made of ordinary words. How many tokens a word costs is measured once, from the usage of two short calls, so
the driver needs no tokenizer and works against anything that speaks the OpenAI API. Each prompt starts with a salt of its
own: no two share a prefix, and an engine's prefix cache cannot make the second run cheaper than the first.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

WORDS = str.split(
    "water level gate canal river stone bridge mill wheel field valley harbour morning winter garden letter window market "
    "copper silver timber paper engine signal weather mountain island forest village station number measure balance carry "
    "follow gather listen answer question picture corner season travel simple narrow gentle steady bright distant hollow "
    "early under across before between against beyond along during several another enough perhaps together always"
)
TAPE_WORDS = 40_000
CALIBRATION_WORDS = (100, 400)
CALIBRATION_TRIES = 5
CONTEXT_TOKENS_UNKNOWN = 4_096
SAMPLE_EVERY_S = 0.25
SAMPLES_MAX = 100_000
SETTLE_S_MAX = 15.0


class LoadError(RuntimeError):
    """The run cannot start. The text says what was asked, what came, and what would help."""


@dataclass(slots=True)
class Target:
    """Where the calls go and what they ask for."""

    model: str
    context_tokens: int


async def target(client: httpx.AsyncClient, model: str | None, context_tokens: int | None) -> Target:
    """The model asked for, else the first one served; its context as served, else as told."""
    try:
        answer = await client.get("/v1/models")
        answer.raise_for_status()
        served: list[dict[str, Any]] = answer.json()["data"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise LoadError(
            f"GET {str(client.base_url).rstrip('/')}/v1/models: {error!r}; is the server up, and the key right?"
        ) from error
    for entry in served:
        if model in (None, entry.get("id")):
            stated = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")  # vLLM's name, and llama.cpp's
            return Target(str(entry["id"]), context_tokens or int(stated or CONTEXT_TOKENS_UNKNOWN))
    raise LoadError(f"{client.base_url} serves {[entry.get('id') for entry in served]}, not {model}")


class Words:
    """Prompts of about as many tokens as asked for. Slices of one tape of words, so making one costs next to nothing."""

    def __init__(self, seed: int, salt: str) -> None:
        random = Random(f"words {seed}")  # noqa: S311 (words, not secrets)
        tape = [random.choice(WORDS) for _ in range(TAPE_WORDS)]
        self._starts = [0]
        for word in tape:
            self._starts.append(self._starts[-1] + len(word) + 1)
        self._tape = " ".join(tape)
        self._salt = salt
        self._per_word_tokens = 1.0
        self._fixed_tokens = 0.0

    def text(self, number: int, words: int) -> str:
        """The prompt of call `number` with so many words after its salt."""
        first = (number * 7_919) % TAPE_WORDS
        words = max(1, min(words, TAPE_WORDS))
        last = first + words
        if last <= TAPE_WORDS:
            body = self._tape[self._starts[first] : self._starts[last] - 1]
        else:
            body = f"{self._tape[self._starts[first] :]} {self._tape[: self._starts[last - TAPE_WORDS] - 1]}"
        return f"{self._salt}{number:06d} {body}"

    def prompt(self, number: int, tokens: int) -> str:
        """The prompt of call `number` of about so many tokens, template included."""
        return self.text(number, round((tokens - self._fixed_tokens) / self._per_word_tokens))

    def learn(self, words: tuple[int, int], tokens: tuple[int, int]) -> None:
        """Two texts' lengths in words and in tokens make the line prompts are sized by."""
        self._per_word_tokens = max((tokens[1] - tokens[0]) / (words[1] - words[0]), 0.1)
        self._fixed_tokens = max(tokens[0] - words[0] * self._per_word_tokens, 0.0)


async def calibrate(client: httpx.AsyncClient, words: Words, path: str, fields: dict[str, Any], chat: bool) -> None:
    """Two calls of one output token each tell what a word and the frame round it cost."""
    costs: list[int] = []
    for place, count in enumerate(CALIBRATION_WORDS):
        text = words.text(999_990 + place, count)
        question = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        costs.append(await _prompt_tokens(client, path, {**fields, **question, "max_tokens": 1}))
    words.learn(CALIBRATION_WORDS, (costs[0], costs[1]))


async def _prompt_tokens(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> int:
    problem = ""
    for _ in range(CALIBRATION_TRIES):
        try:
            answer = await client.post(path, json=body)
            if answer.status_code == 200:
                return int(answer.json()["usage"]["prompt_tokens"])
            problem = f"{answer.status_code} {answer.text[:300]}"
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            problem = repr(error)
        await asyncio.sleep(1.0)
    raise LoadError(f"POST {path} to size prompts: {problem}")


@dataclass(slots=True)
class EngineSample:
    """The engine's own gauges and counters at one moment."""

    at_s: float
    running: float
    waiting: float
    kv_used_ratio: float
    prompt_tokens_total: float
    generation_tokens_total: float
    preemptions_total: float


_LINE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|prompt_tokens_total|"
    r"generation_tokens_total|num_preemptions_total)(?:\{[^}]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)


class EngineWatch:
    """Reads an engine's /metrics every `SAMPLE_EVERY_S` while a run goes on. vLLM's names; ranks are added up."""

    def __init__(self, url: str) -> None:
        self._url = url if url.endswith("/metrics") else url.rstrip("/") + "/metrics"
        self._client = httpx.AsyncClient(timeout=5.0)
        self.samples: list[EngineSample] = []

    async def sample(self) -> EngineSample | None:
        """One look. None where the engine did not answer in time: under load that is not the driver's failure."""
        try:
            answer = await self._client.get(self._url)
        except httpx.HTTPError:
            return None
        sums: dict[str, float] = {}
        for name, value in _LINE.findall(answer.text):
            sums[name] = sums.get(name, 0.0) + float(value)
        if "num_requests_running" not in sums:
            raise LoadError(f"{self._url} shows no vllm:num_requests_running; leave --engine-metrics out for this engine")
        return EngineSample(
            at_s=time.monotonic(),
            running=sums["num_requests_running"],
            waiting=sums.get("num_requests_waiting", 0.0),
            kv_used_ratio=sums.get("kv_cache_usage_perc", 0.0),
            prompt_tokens_total=sums.get("prompt_tokens_total", 0.0),
            generation_tokens_total=sums.get("generation_tokens_total", 0.0),
            preemptions_total=sums.get("num_preemptions_total", 0.0),
        )

    async def begin(self) -> EngineSample | None:
        """Before anything is offered it has to answer; then as `settled`."""
        if await self.sample() is None:
            raise LoadError(f"{self._url} does not answer; is it the engine's own address? --engine-metrics may be left out")
        return await self.settled()

    async def run(self) -> None:
        """Sample until cancelled."""
        due_s = time.monotonic()
        while len(self.samples) < SAMPLES_MAX:
            sample = await self.sample()
            if sample is not None:
                self.samples.append(sample)
            due_s = max(due_s + SAMPLE_EVERY_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def settled(self) -> EngineSample | None:
        """The first sample that shows an empty engine, else the last one within `SETTLE_S_MAX`."""
        until_s = time.monotonic() + SETTLE_S_MAX
        while True:
            sample = await self.sample()
            if (sample is not None and sample.running + sample.waiting == 0) or time.monotonic() >= until_s:
                return sample
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.aclose()

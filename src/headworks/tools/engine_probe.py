"""What is at a URL, and what it can hold: the questions `headworks init` asks of a live engine.

Everything goes through the adapters that will serve it, so what is found here is what the gateway will find. Three kinds
are told apart: vLLM by its metrics or its version, llama.cpp's server by `/props`, and anything else that lists models the
way OpenAI's API does. What an engine says is data: text of its own is cut to plain characters before it goes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headworks.core.types import Capacity
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look, look_at_models
from headworks.engines.openai import OpenAIEngine
from headworks.engines.pool import Pool
from headworks.engines.vllm import VllmEngine

REPLICA = "probe"
TEXT_LENGTH_MAX = 64
MODELS_MAX = 100
"""Models of one engine that go into a file."""


@dataclass(slots=True)
class Found:
    """One engine as it described itself."""

    kind: str
    """The adapter that drives it: `vllm` or `openai`."""
    product: str
    """What it is, for people: `vLLM 0.32.0`."""
    models: tuple[str, ...]
    context_tokens: int | None
    """What one sequence can hold, where it says so."""
    kv_tokens: int | None
    """What all that run can hold together, where it says so."""
    block_tokens: int
    running_max: int | None
    """Sequences it runs at once, where it says so."""
    evidence: tuple[str, ...]
    notes: tuple[str, ...]


async def probe(url: str, api_key: str | None, clock_s: Callable[[], float]) -> Found:
    """Ask. Raises `EngineError` with what was asked and what came."""
    pool = Pool(Endpoint(url, api_key), clock_s)
    try:
        models = await look_at_models(pool)
        states_context = any(model.max_model_len for model in models)
        if await _has_series(pool, b"vllm:") or (states_context and await _has_version(pool)):
            return await _vllm(VllmEngine(REPLICA, url, clock_s, api_key))
        props = await _props(pool)
        return await _other(OpenAIEngine(REPLICA, url, clock_s, api_key), props, states_context)
    finally:
        await pool.close()


async def _has_series(pool: Pool, prefix: bytes) -> bool:
    seen = await look(pool, "/metrics")
    return seen.status == 200 and prefix in seen.payload


async def _has_version(pool: Pool) -> bool:
    """A vLLM that was told to show no statistics still has its own `/version`."""
    seen = await look(pool, "/version")
    try:
        return seen.status == 200 and bool(msgspec.json.decode(seen.payload, type=_Version).version)
    except msgspec.DecodeError:
        return False


async def _props(pool: Pool) -> _Props | None:
    seen = await look(pool, "/props")
    try:
        return msgspec.json.decode(seen.payload, type=_Props) if seen.status == 200 else None
    except msgspec.DecodeError:
        return None


async def _vllm(engine: VllmEngine) -> Found:
    try:
        capacity = await engine.describe()
    finally:
        await engine.close()
    return _found(capacity, f"vLLM {plain(capacity.version)}", capacity.context_tokens, capacity.kv_tokens, None)


async def _other(engine: OpenAIEngine, props: _Props | None, states_context: bool) -> Found:
    """The adapter's own word on the context is an assumption where the engine does not state one."""
    try:
        capacity = await engine.describe()
    finally:
        await engine.close()
    if props is None:
        context_tokens = capacity.context_tokens if states_context else None
        return _found(capacity, "an OpenAI-compatible server", context_tokens, None, None)
    slot_tokens = props.default_generation_settings.n_ctx
    product = f"llama.cpp's server {plain(props.build_info)}".strip()
    # Each slot has its own part of the memory, so together they hold so much and no more.
    return _found(capacity, product, slot_tokens, slot_tokens * props.total_slots, props.total_slots)


def _found(
    capacity: Capacity, product: str, context_tokens: int | None, kv_tokens: int | None, running_max: int | None
) -> Found:
    models = tuple(model for model in capacity.models if model and model == plain(model, 256) and " " not in model)
    if not models:
        raise EngineError("the engine serves no model whose name can stand in a configuration")
    left_out = len(capacity.models) - len(models[:MODELS_MAX])
    notes = (*capacity.notes, *([f"{left_out} of its models are left out"] if left_out else ()))
    return Found(
        capacity.engine,
        product,
        models[:MODELS_MAX],
        context_tokens,
        kv_tokens,
        capacity.block_tokens,
        running_max,
        capacity.evidence,
        tuple(plain(note, 400) for note in notes),
    )


def plain(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Text of an engine's own, fit for a comment: printable ASCII on one line, and not too much of it."""
    return "".join(character for character in text if character.isascii() and character.isprintable())[:length_max]


class _Version(msgspec.Struct):
    version: str


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    """llama.cpp's `/props`, as far as it concerns us."""

    total_slots: int
    default_generation_settings: _Generation
    build_info: str = ""

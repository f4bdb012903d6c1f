"""What is at a URL, and what it can hold: the questions `headworks init` asks of a live engine.

Everything goes through the adapters that will serve it, so what is found here is what the gateway will find. Four kinds are
told apart: vLLM by its metrics or its version, SGLang by `/v1/loads`, llama.cpp's server by `/props`, and anything else that
lists models the way OpenAI's API does. What an engine says is data: text of its own is cut to plain characters before it goes
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headworks.core.types import Capacity
from headworks.engines.base import Engine, EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.kinds import ENGINES
from headworks.engines.llamacpp import Props
from headworks.engines.look import look, look_at_models
from headworks.engines.pool import Pool

REPLICA = "probe"
PRODUCTS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp's server"}
TEXT_LENGTH_MAX = 64
MODELS_MAX = 100
"""Models of one engine that go into a file."""


@dataclass(slots=True)
class Found:
    """One engine as it described itself."""

    kind: str
    """The adapter that drives it, by its name in the configuration."""
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


async def probe(url: str, api_key: str | None, clock_s: Callable[[], float], ca: str | None = None) -> Found:
    """Ask. `ca`: who verifies it, over https. Raises `EngineError` with what was asked and what came."""
    pool = Pool(Endpoint(url, api_key, ca), clock_s)
    try:
        models = await look_at_models(pool)
        states_context = any(model.max_model_len for model in models)
        kind, props = await _kind(pool, states_context)
    finally:
        await pool.close()
    capacity = await _described(ENGINES[kind](REPLICA, url, clock_s, api_key, ca=ca))
    if kind == "openai":
        return _other(capacity, props, states_context)
    product = f"{PRODUCTS[kind]} {plain(capacity.version)}"
    return _found(capacity, product, capacity.context_tokens, capacity.kv_tokens, capacity.running_max)


async def _kind(pool: Pool, states_context: bool) -> tuple[str, Props | None]:
    """The adapter's name, and llama.cpp's `/props` where it has no metrics for more than the general one."""
    if await _has_series(pool, b"vllm:"):
        return "vllm", None
    if (await look(pool, "/v1/loads")).status == 200:
        return "sglang", None
    if states_context and await _has_version(pool):
        return "vllm", None
    props = await _props(pool)
    if props is not None and await _has_series(pool, b"llamacpp:"):
        return "llamacpp", props
    return "openai", props


async def _described(engine: Engine) -> Capacity:
    try:
        return await engine.describe()
    finally:
        await engine.close()


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


async def _props(pool: Pool) -> Props | None:
    seen = await look(pool, "/props")
    try:
        return msgspec.json.decode(seen.payload, type=Props) if seen.status == 200 else None
    except msgspec.DecodeError:
        return None


def _other(capacity: Capacity, props: Props | None, states_context: bool) -> Found:
    """The adapter's own word on the context is an assumption where the engine does not state one."""
    if props is None:
        context_tokens = capacity.context_tokens if states_context else None
        return _found(capacity, "an OpenAI-compatible server", context_tokens, None, None)
    found = _found(
        capacity,
        f"{PRODUCTS['llamacpp']} {plain(props.build_info)}".strip(),
        props.default_generation_settings.n_ctx,
        props.default_generation_settings.n_ctx,
        props.total_slots,
    )
    found.notes += ("with --metrics its stops could be proved (engine: llamacpp)",)
    return found


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

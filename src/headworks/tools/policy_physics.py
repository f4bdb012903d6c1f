"""What follows from a model's shape alone: its weights, the memory a token takes, and how long that takes to move.

A token keeps a key and a value for each layer and key-value head: 2 × layers × heads × head size × bytes of a number. For
Llama-2-7B in 16 bits that is 2 · 32 · 32 · 128 · 2 = 524,288 bytes, and 256 MiB for a prompt of 512 tokens. What is moved
between engines takes at least bytes ÷ bandwidth. None of it is measured, and none of it can be beaten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
SHAPE_BYTES_MAX = 1_000_000
LINKS_BYTES_PER_S: tuple[tuple[str, float], ...] = (
    ("NVLink 3 (300 GB/s)", 300e9),
    ("100 Gbps RDMA (12.5 GB/s)", 12.5e9),
    ("10 Gbps (1.25 GB/s)", 1.25e9),
)
"""By their nominal rate, one way."""


class ShapeError(ValueError):
    """The file does not tell a shape. The text says what is missing."""


@dataclass(slots=True)
class Shape:
    """A decoder's shape, as its `config.json` has it."""

    name: str
    layers: int
    kv_heads: int
    head_size: int
    number_bytes: int
    parameters: int | None
    """Of a Llama-like decoder with these sizes; None where the file does not say enough."""

    @property
    def kv_bytes_per_token(self) -> int:
        """A key and a value, for each layer and key-value head."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.number_bytes

    @property
    def weight_bytes(self) -> int | None:
        """All its parameters, as the file says they are kept."""
        return None if self.parameters is None else self.parameters * self.number_bytes


def shape_of(file: Path) -> Shape:
    """From a model's `config.json`. Raises `ShapeError`."""
    try:
        if file.stat().st_size > SHAPE_BYTES_MAX:
            raise ShapeError(f"{file} is too long for a model's config.json")
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShapeError(f"{file} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ShapeError(f"{file} is no JSON object")
    fields = fields.get("text_config", fields)  # of a model that also sees, the part that writes
    layers, heads = _count(fields, "num_hidden_layers", file), _count(fields, "num_attention_heads", file)
    hidden = _count(fields, "hidden_size", file)
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    head_size = int(fields.get("head_dim") or hidden // heads)
    kind = str(fields.get("torch_dtype") or fields.get("dtype") or "")
    if kind not in NUMBER_BYTES:
        raise ShapeError(f"{file}: torch_dtype is {kind or 'missing'}; known are {', '.join(NUMBER_BYTES)}")
    name = str(fields.get("_name_or_path") or fields.get("model_type") or file.parent.name)
    parameters = _parameters(fields, layers, heads, kv_heads, head_size, hidden)
    return Shape(name[:100], layers, kv_heads, head_size, NUMBER_BYTES[kind], parameters)


def _count(fields: dict[str, Any], key: str, file: Path) -> int:
    found = fields.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ShapeError(f"{file}: {key} is missing or no count")
    return found


def _parameters(fields: dict[str, Any], layers: int, heads: int, kv_heads: int, head_size: int, hidden: int) -> int | None:
    """Embeddings, and for each layer attention, three matrices of the feed-forward part and two norms; no experts."""
    words, inner = fields.get("vocab_size"), fields.get("intermediate_size")
    if not isinstance(words, int) or not isinstance(inner, int) or fields.get("num_local_experts"):
        return None
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    embeddings = words * hidden * (1 if fields.get("tie_word_embeddings") else 2)
    return embeddings + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


def transfer_s(size_bytes: int, bytes_per_s: float) -> float:
    """The least time in which so much can be moved."""
    return size_bytes / bytes_per_s

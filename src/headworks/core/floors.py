"""Memory that is guaranteed to a model on every replica, whoever else runs there (B10, `pools.*.memory`).

    free - the tokens of a request of model M  >=  Σ over the other models m of max(0, floor_m - used_m)

with *free* what the replica may still be charged, and *used* what this gateway has taken there, by model, in whole memory
blocks. So a guarantee costs only what of it is unused: a model that holds its floor already keeps nothing more from others,
and up to its floor a model is never refused for another's. Several models are several names that one engine serves (LoRA).
"""

from __future__ import annotations

RESERVED = "model_reservation"


class Floors:
    """Of one replica that serves several models, some with a guarantee."""

    __slots__ = ("_floors", "_used")

    def __init__(self, floors: dict[str, int], used: dict[str, int]) -> None:
        self._floors = floors
        self._used = used
        """By model, while anything of it is taken."""

    def take(self, model: str, kv_tokens: int) -> None:
        """So much more of this model, or less."""
        used = self._used.get(model, 0) + kv_tokens
        if used:
            self._used[model] = used
        else:
            del self._used[model]

    def kept_tokens(self, model: str) -> int:
        """What is kept for the others, as far as they do not use it yet."""
        used = self._used
        return sum(max(0, floor - used.get(name, 0)) for name, floor in self._floors.items() if name != model)

    def used(self) -> dict[str, int]:
        """What is taken, by model."""
        return dict(self._used)

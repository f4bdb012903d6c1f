"""What `ContinuousBatching` remembers of an execution and of each of its sequences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

WAITING, PREFILL, DECODE, GONE = "waiting", "prefill", "decode", "gone"


@dataclass(slots=True, eq=False)
class EngineExecution:
    id: str
    sequences: list[EngineSequence] = field(default_factory=list)
    inside: int = 0
    begun: bool = False


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One sample. `generated` and `computed` are as of `joined_step`; what it has made since is the steps since."""

    execution: EngineExecution
    sample: int
    prompt_tokens: int
    output_tokens: int
    names: Sequence[Hashable]
    place: str = WAITING
    order: int = 0
    target_tokens: int = 0
    computed: int = 0
    generated: int = 0
    reported: int = 0
    joined_step: int = 0
    need_step: int = 0
    due_step: int = 0
    private_blocks: int = 0
    named: list[Hashable] = field(default_factory=list)
    cached_tokens: int = 0
    preempted: bool = False

    def generated_by(self, step: int) -> int:
        """Output tokens it has after this many steps of the engine."""
        return self.generated + (step - self.joined_step if self.place == DECODE else 0)


def by_order(sequence: EngineSequence) -> int:
    """Oldest admission first."""
    return sequence.order

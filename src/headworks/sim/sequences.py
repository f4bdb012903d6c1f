"""What `ContinuousBatching` remembers of an execution and of each of its sequences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from headworks.sim.engine import Course

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


def course_of(inside: Sequence[EngineSequence], steps: int, decoding: int, context_tokens: int) -> Course:
    """What lies before an engine that has made so many steps."""
    unread_tokens, ends = 0, []
    for one in inside:
        generated = one.generated + (steps - one.joined_step if one.place == DECODE else 0)
        if one.place != DECODE:
            unread_tokens += one.prompt_tokens + generated - one.computed
        ends.append((one.output_tokens - generated, one.prompt_tokens + generated))
    return Course(unread_tokens, decoding, context_tokens, ends)


def by_order(sequence: EngineSequence) -> int:
    """Oldest admission first."""
    return sequence.order

"""Who is next? The queue disciplines behind one question (D3), live and simulated alike.

`propagate_cancel`, `drop_late` and an unbounded queue are switches of the policy, so that "naive" is really naive.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.life import Life
from headworks.core.policy import DisciplinePolicy
from headworks.core.queue import PoolQueue

Flow = tuple[str, str]


class Discipline:
    """One order of service. `refuses_predicted`: a request that cannot make it is refused when it arrives (B2)."""

    __slots__ = ("_pick", "drops_late", "drops_oldest", "policy", "refuses_predicted")

    def __init__(self, policy: DisciplinePolicy) -> None:
        self.policy = policy
        self._pick, self.refuses_predicted, self.drops_oldest = KINDS[policy.kind]
        self.drops_late = policy.drop_late and not policy.unbounded
        """What can no longer be on time leaves the queue, told so. Without this switch nothing does but its client."""

    def next(self, queue: PoolQueue, blocked: dict[Flow, str]) -> Life | None:
        """The life to ask for now, among the flows that are not blocked by a limit of their own."""
        return self._pick(queue, blocked)

    def ahead_tokens(self, queue: PoolQueue) -> int:
        """Work that would run before a newcomer."""
        return 0 if self.drops_oldest else queue.tokens

    def ahead_requests(self, queue: PoolQueue) -> int:
        """The same in requests."""
        return 0 if self.drops_oldest else queue.requests


def oldest_first(queue: PoolQueue, blocked: dict[Flow, str]) -> Life | None:
    """First in, first out, over all flows."""
    best: Life | None = None
    for flow, line in queue.lines.items():
        if flow not in blocked:
            life = line.oldest()
            if life is not None and (best is None or life.number < best.number):
                best = life
    return best


def newest_first(queue: PoolQueue, blocked: dict[Flow, str]) -> Life | None:
    """Last in, first out: fresh requests still have their time."""
    best: Life | None = None
    for flow, line in queue.lines.items():
        if flow not in blocked:
            life = line.newest()
            if life is not None and (best is None or life.number > best.number):
                best = life
    return best


KINDS: dict[str, tuple[Callable[[PoolQueue, dict[Flow, str]], Life | None], bool, bool]] = {
    # kind → order, refuses by prediction, a full queue drops its oldest for the newcomer
    "fifo": (oldest_first, False, False),
    "fifo_tail_drop": (oldest_first, False, False),
    "lifo_drop_head": (newest_first, False, True),
    "predictive_ttft": (oldest_first, True, False),
}

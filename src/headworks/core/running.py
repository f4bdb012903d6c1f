"""What runs on one engine for this gateway, kept as an outlook on what it will hold (D4).

To look at everything that runs, once for every request, is what the future peak cost. What each adds to the outlook stays in
it instead, and is made anew only where it is another:

- when it was asked for, was granted more, or is charged no longer (`changed`, from where charges are counted);
- when its answer is longer by `FURTHER_RATIO`, as the steps ahead are: of those that became so long others go on;
- every `LOOK_EVERY_S` while nobody knows how far it is: before its first byte, and where an engine has no clock.

In between each makes a token in every iteration of the engine, which the outlook reckons with by itself. So an answer costs
some ten changes in its life, whatever else runs, and a question costs one pass over the steps ahead.

Nothing is kept before somebody asks, nor once nobody has asked for `CHANGED_MAX` changes: the next question begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from headworks.core.life import LEAVING, SETTLING, UNASKED
from headworks.core.peak import Group, Outlook, Part, certainly
from headworks.core.types import Work

if TYPE_CHECKING:
    from headworks.core.lengths import Lengths
    from headworks.core.life import Life
    from headworks.core.replica import Replica

LOOK_EVERY_S = 0.1
FURTHER_RATIO, FURTHER_TOKENS = 0.5, 16
CHANGED_MAX = 1024
TOKENS_MAX = 100_000.0
"""After so many iterations everything is added up anew: differences of large sums lose their last digits."""


class Running:
    """Of one engine."""

    __slots__ = (
        "_changed",
        "_due",
        "_due_s",
        "_others",
        "_others_parts",
        "_outlook",
        "_parts",
        "_replica",
        "_runs",
        "_seen_s",
        "is_kept",
    )

    def __init__(self, replica: Replica, runs: Mapping[str, Life]) -> None:
        self._replica = replica
        self._runs = runs
        self._others: list[Group] = []
        self.is_kept = False
        """The outlook is kept: whatever changes has to be told."""
        self._changed: list[Life] = []
        self._outlook = Outlook()
        self._parts: dict[str, Part] = {}
        """By execution, what each has added."""
        self._others_parts: list[Part] = []
        self._due: list[tuple[float, str]] = []
        """When to look at each again, the next first; those that stand otherwise in `_due_s` are out of date."""
        self._due_s: dict[str, float] = {}
        self._seen_s = 0.0

    def changed(self, life: Life) -> None:
        """Its charge is another. While the outlook is kept."""
        self._changed.append(life)
        if len(self._changed) > CHANGED_MAX:
            self._forget()

    def learn_others(self, groups: list[Group]) -> None:
        """What runs there for other gateways."""
        self._others = groups
        if self.is_kept:
            self._add_others()

    def brought_up(self, now_s: float) -> bool:
        """Bring the outlook up to now. Whether anything in it has changed, other than by running on."""
        if not self.is_kept or self._outlook.tokens > TOKENS_MAX:
            self._begin(now_s)
            return True
        iteration_s = self._replica.iteration_s
        if iteration_s:
            self._outlook.tokens += (now_s - self._seen_s) / iteration_s
        self._seen_s = now_s
        has_changed = bool(self._changed)
        for life in self._changed:
            self._look(life.execution.id, now_s)
        self._changed.clear()
        while self._due and self._due[0][0] <= now_s:
            due_s, execution = heappop(self._due)
            if self._due_s.get(execution) == due_s:
                self._look(execution, now_s)
                has_changed = True
        return has_changed

    def peak_with(self, work: Work, lengths: Lengths) -> int:
        """The most that will be held at once, with this: as of the last time that it was brought up."""
        return self._outlook.peak_with(goes_on(work, lengths, 0), work.sequences, held_tokens(self._replica, work, lengths, 0))

    def of_ours(self, now_s: float) -> Iterator[tuple[Life, int]]:
        """Everything of ours there, and how many tokens of each of its samples it has made."""
        for life in self._runs.values():
            if self._is_there(life):
                yield life, self._made(life, now_s)

    def _is_there(self, life: Life) -> bool:
        return life.execution.replica == self._replica.name and life.state not in (SETTLING, UNASKED)

    def _made(self, life: Life, now_s: float) -> int:
        """By what was counted, or by the time and the engine's clock, whichever is more."""
        work, begun_s, iteration_s = life.work, _begun_s(life), self._replica.iteration_s
        made = life.output_tokens // work.sequences
        if begun_s is not None and iteration_s:
            made = max(made, 1 + int((now_s - begun_s) / iteration_s))
        return min(made, work.output_tokens)

    def _begin(self, now_s: float) -> None:
        self._forget()
        self.is_kept, self._seen_s = True, now_s
        for execution, life in self._runs.items():
            if self._is_there(life):
                self._look(execution, now_s)
        self._add_others()

    def _forget(self) -> None:
        self.is_kept = False
        self._outlook = Outlook()
        self._parts.clear()
        self._due_s.clear()
        self._due.clear()
        self._changed.clear()
        self._others_parts = []

    def _add_others(self) -> None:
        for part in self._others_parts:
            self._outlook.remove(part)
        self._others_parts = [self._outlook.add(certainly(more), count, held, 0.0) for more, count, held in self._others]

    def _look(self, execution: str, now_s: float) -> None:
        """What it adds now, and when that will be another."""
        part = self._parts.pop(execution, None)
        if part is not None:
            self._outlook.remove(part)
        life = self._runs.get(execution)
        if life is None or not self._is_there(life):
            self._due_s.pop(execution, None)
            return
        work, made = life.work, self._made(life, now_s)
        lengths, count = life.lane.lengths, work.sequences
        held = held_tokens(self._replica, work, lengths, made)
        runs = certainly(0) if life.state == LEAVING else goes_on(work, lengths, made)
        self._parts[execution] = self._outlook.add(runs, count, held, held * held / count)
        self._look_again(life, now_s)

    def _look_again(self, life: Life, now_s: float) -> None:
        execution, begun_s, iteration_s = life.execution.id, _begun_s(life), self._replica.iteration_s
        after_s = LOOK_EVERY_S
        if begun_s is not None and iteration_s:
            after_s = max(after_s, FURTHER_TOKENS * iteration_s, FURTHER_RATIO * (now_s - begun_s))
        self._due_s[execution] = due_s = now_s + after_s
        if len(self._due) > 2 * len(self._due_s) + CHANGED_MAX:  # grown answers are looked at before they are due
            self._due = [entry for entry in self._due if self._due_s.get(entry[1]) == entry[0]]
            heapify(self._due)
        heappush(self._due, (due_s, execution))


def goes_on(work: Work, lengths: Lengths, made: int) -> Sequence[float]:
    """The chances of one that has made so many tokens to run on, up to the most that it may write."""
    runs = lengths.chances(made)
    if runs is None:
        return certainly(work.output_tokens - made)
    steps = len(certainly(work.output_tokens_max - made))
    return runs if steps >= len(runs) else runs[:steps]


def held_tokens(replica: Replica, work: Work, lengths: Lengths, made: int) -> int:
    """What all its samples hold, in whole blocks, if its prompt is what such prompts come to."""
    block_tokens = replica.capacity.block_tokens if replica.capacity is not None else 1
    return lengths.prompts.tokens(work) + work.sequences * (made + block_tokens - 1)


def _begun_s(life: Life) -> float | None:
    return life.first_byte_s if life.streamed else life.sent_s

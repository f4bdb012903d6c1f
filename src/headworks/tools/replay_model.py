"""How long would it have taken? What a log says about its engines, for requests that meet another load than in the log.

Of each answer that the log has whole, with the executions n its engine had inside when it was sent (and when it began):

    first token   t = a + b · prompt tokens + c · n
    each token    t = d + e · n

by least squares, no term below zero (`core/stats.py`). A request that ran in the log keeps its own times; where another number
is inside than in the log they are scaled by what the fit says of both. A request that did not run gets the fitted times,
and an answer as long as some answer of its tenant and class, picked by its id, so that the same log gives the same plan.

It extrapolates: where a new policy fills an engine further than the log ever saw, its word is worth little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from headworks.core.instants import turn_ends_s
from headworks.core.stats import FittedLine, FittedPlane
from headworks.core.types import Usage
from headworks.tools.decision_log import Life
from headworks.tools.log_lines import Arrival, Ended

ALIKE_REQUESTS = 2
ALIKE_RATIO = 0.1
"""So few executions more or less inside are the same load: the recorded times hold as they are."""
SCALE_MAX = 10.0
TOKENS_A_S = 50.0
"""Of a log that has no whole answer."""
WHOLE = "completed"
IN_BAND = "E1"
NO_PROOF = ("", "E0", IN_BAND)
"""Evidence of an execution that had not begun, or came to its own end."""
Value = TypeVar("Value", int, float)


@dataclass(slots=True)
class Course:
    """What an engine does with one execution: seconds from sending it."""

    first_s: float
    end_s: float
    usage: Usage
    failed: bool = False
    """The engine answers it with an error, in band."""
    lost: bool = False
    """Its connection breaks at the end, and the stop is proved by other means."""
    silent: bool = False
    """It says nothing any more from then on."""


class Inside:
    """How many executions an engine of the log had inside, and how many tokens they held, at any instant from first to last.

    Instants are asked for in order.
    """

    def __init__(self, ended: Iterable[Ended]) -> None:
        moves: list[tuple[float, int, int]] = []
        for one in ended:
            if one.sent_s is not None:
                tokens = held_tokens(one.usage, one.work.tokens)
                moves += [(one.sent_s, 1, tokens), (one.ended_s, -1, -tokens)]
        moves.sort()
        self._moves = moves
        self._next = 0
        self.requests = 0
        self.tokens = 0

    def at(self, at_s: float) -> int:
        """Moves to this instant."""
        moves = self._moves
        while self._next < len(moves) and moves[self._next][0] <= at_s:
            _, requests, tokens = moves[self._next]
            self.requests += requests
            self.tokens += tokens
            self._next += 1
        return self.requests


def held_tokens(usage: Usage | None, reserved_tokens: int) -> int:
    """What an execution held on average: its prompt and half of what it wrote."""
    return reserved_tokens if usage is None else usage.prompt_tokens + usage.output_tokens // 2


class Model:
    """Fitted to one life in the log."""

    def __init__(self, life: Life) -> None:
        self._first_s = FittedPlane(1.0)
        self._token_s = FittedLine(1.0)
        self._inside: dict[str, tuple[int, int]] = {}
        """By arrival that ran: executions inside when it was sent and when it began."""
        self._outputs: dict[tuple[str, str], list[int]] = {}
        self._ratios: dict[tuple[str, str], list[float]] = {}
        self._proofs_s: list[float] = []
        self.fitted = 0
        """Answers that the times were fitted to."""
        for replica in sorted({one.ended.replica for one in life.arrivals}):
            self._count([one.ended for one in life.arrivals if one.ended.replica == replica and one.ended.sent_s is not None])
        for one in life.arrivals:
            self._learn(one.ended)
        for outputs in self._outputs.values():
            outputs.sort()
        for seconds in (*self._ratios.values(), self._proofs_s):
            seconds.sort()

    # learning

    def _count(self, ended: Sequence[Ended]) -> None:
        together = Counter(turn_ends_s(one.sent_s) for one in ended if one.sent_s is not None)
        for place, moment in enumerate(("sent_s", "first_byte_s")):
            inside = Inside(ended)
            for one in sorted((one for one in ended if getattr(one, moment) is not None), key=lambda one: getattr(one, moment)):
                before = self._inside.get(one.id, (0, 0))
                turn_s = turn_ends_s(getattr(one, moment))
                count = inside.at(turn_s)
                if place == 0:  # of those sent in one turn nobody found another inside
                    count -= together[turn_s] - 1
                self._inside[one.id] = (count, count) if place == 0 else (before[0], count)

    def _learn(self, ended: Ended) -> None:
        usage, asked = ended.usage, ended.asked
        if ended.unconfirmed_s is not None and ended.evidence not in NO_PROOF:
            self._proofs_s.append(ended.unconfirmed_s)
        if ended.outcome != WHOLE or usage is None or not usage.exact or ended.sent_s is None or asked is None:
            return
        for pair in ((ended.key.tenant, ended.service_class), ("", ended.service_class), ("", "")):
            self._outputs.setdefault(pair, []).append(-(-usage.output_tokens // max(1, asked.samples)))
            if ended.work.prefill_tokens:
                self._ratios.setdefault(pair, []).append(usage.prompt_tokens / ended.work.prefill_tokens)
        if not asked.stream or ended.first_byte_s is None:
            return
        at_sending, at_beginning = self._inside[ended.id]
        self.fitted += 1
        self._first_s.add(usage.prompt_tokens, at_sending, ended.first_byte_s - ended.sent_s)
        further = usage.output_tokens // max(1, asked.samples) - 1
        if further > 0:
            self._token_s.add(at_beginning, (ended.ended_s - ended.first_byte_s) / further)

    # asking

    def course(self, arrival: Arrival, inside: int, output_tokens_max: int, *, same: bool) -> Course:
        """What becomes of it with so many inside, itself among them. `same`: it is sent when it was sent then."""
        ended = arrival.ended
        if ended.sent_s is None or not ended.outcome:
            return self._fitted(ended, inside, output_tokens_max)
        if ended.evidence == IN_BAND and ended.outcome != "failed" and ended.usage is not None and ended.usage.exact:
            return self._recorded(ended, inside, output_tokens_max, ended.usage)
        return self._cut_off(ended, inside, output_tokens_max, same)

    def proof_s(self, ended: Ended) -> float:
        """From telling an engine to stop to the proof that it has."""
        if ended.unconfirmed_s is not None and ended.evidence not in NO_PROOF:
            return ended.unconfirmed_s
        return self._proofs_s[len(self._proofs_s) // 2] if self._proofs_s else 0.0

    def first_s_at(self, prompt_tokens: int, inside: int) -> float:
        """The fitted time to the first token."""
        return self._first_s.at(prompt_tokens, inside)

    def token_s_at(self, inside: int) -> float:
        """The fitted time a token."""
        return self._token_s.at(inside) or 1.0 / TOKENS_A_S

    def _recorded(self, ended: Ended, inside: int, most: int, usage: Usage) -> Course:
        """As it was, scaled where the load is another."""
        assert ended.sent_s is not None
        end_s = ended.ended_s - ended.sent_s
        first_s = end_s if ended.first_byte_s is None else ended.first_byte_s - ended.sent_s
        then = self._inside[ended.id]
        if abs(inside - then[0]) > max(ALIKE_REQUESTS, ALIKE_RATIO * then[0]):
            prompt_tokens = usage.prompt_tokens
            of_first = _ratio(self.first_s_at(prompt_tokens, inside), self.first_s_at(prompt_tokens, then[0]))
            of_token = _ratio(self.token_s_at(inside), self.token_s_at(then[1]))
            if ended.asked is not None and not ended.asked.stream:
                of_first = of_token  # it came in one piece, most of whose time was writing
            first_s, end_s = first_s * of_first, first_s * of_first + (end_s - first_s) * of_token
        samples = 1 if ended.asked is None else max(1, ended.asked.samples)
        if usage.output_tokens <= most * samples:
            return Course(first_s, end_s, usage)
        shorter = Usage(usage.prompt_tokens, usage.cached_tokens, most * samples, usage.engine_s, "length", True)
        return Course(first_s, first_s + (end_s - first_s) * most * samples / usage.output_tokens, shorter)

    def _cut_off(self, ended: Ended, inside: int, most: int, same: bool) -> Course:
        """It ran and was not seen to its end: what it would have written is more than what it wrote."""
        assert ended.sent_s is not None
        stopped_s, wrote = ended.stopped_s - ended.sent_s, 0 if ended.usage is None else ended.usage.output_tokens
        course = self._fitted(ended, inside, most, more_than=wrote)
        first_s = course.first_s if ended.first_byte_s is None else ended.first_byte_s - ended.sent_s
        if ended.outcome == "failed":
            accident = self._accident(ended, first_s, stopped_s, course.usage)
            if accident is not None:
                return accident
        # Sent when it was sent then, it had not begun, or not ended, when somebody gave up, nor until the proof came.
        proved_s = ended.ended_s - ended.sent_s + LATER_S if same else 0.0
        if ended.first_byte_s is None and same:
            first_s = max(first_s, stopped_s + LATER_S)
        written_s = course.end_s - course.first_s
        if ended.first_byte_s is not None and wrote > 1:  # at its own pace
            written_s = (ended.stopped_s - ended.first_byte_s) * course.usage.output_tokens / wrote
        return Course(first_s, max(first_s + written_s, proved_s), course.usage)

    @staticmethod
    def _accident(ended: Ended, first_s: float, stopped_s: float, usage: Usage) -> Course | None:
        """Its engine ended it: that is taken as certain."""
        if ended.evidence == IN_BAND:
            return Course(min(first_s, stopped_s), stopped_s, usage, failed=True)
        if ended.reason == "upstream_lost":
            first_s = stopped_s + LATER_S if ended.first_byte_s is None else first_s
            return Course(first_s, stopped_s, usage, lost=True)
        if ended.reason == "upstream_timeout" and ended.first_byte_s is not None:
            return Course(first_s, stopped_s, usage, silent=True)
        return None

    def _fitted(self, ended: Ended, inside: int, most: int, more_than: int = 0) -> Course:
        """Of a request the log did not see run: the times of its like."""
        prompt_tokens = self._prompt_tokens(ended)
        samples = 1 if ended.asked is None else max(1, ended.asked.samples)
        output_tokens = max(1, min(self._output_tokens(ended, more_than // samples), most))
        first_s = self.first_s_at(prompt_tokens, inside)
        end_s = first_s + (output_tokens - 1) * self.token_s_at(inside)
        if ended.asked is not None and not ended.asked.stream:
            first_s = end_s
        end = "length" if output_tokens >= most else "stop"
        return Course(first_s, end_s, Usage(prompt_tokens, 0, output_tokens * samples, end_s, end, True))

    def _prompt_tokens(self, ended: Ended) -> int:
        reserved = ended.work.prefill_tokens
        if ended.usage is not None:
            return ended.usage.prompt_tokens
        if ended.work.basis == "exact":
            return reserved
        ratios = self._alike(ended, self._ratios)
        return max(1, round(reserved * ratios[len(ratios) // 2])) if ratios else reserved

    def _output_tokens(self, ended: Ended, more_than: int) -> int:
        """An answer of its tenant and class, by its id, and one of those that are longer than it was already."""
        outputs = self._alike(ended, self._outputs)
        longer = outputs[bisect_right(outputs, more_than) :] if more_than else outputs
        if not longer:
            return max(more_than + 1, ended.work.output_tokens)
        drawn = int.from_bytes(blake2b(ended.id.encode(), digest_size=4).digest(), "big")
        return int(longer[drawn * len(longer) >> 32])

    @staticmethod
    def _alike(ended: Ended, found: dict[tuple[str, str], list[Value]]) -> list[Value]:
        pairs = ((ended.key.tenant, ended.service_class), ("", ended.service_class), ("", ""))
        return next((found[pair] for pair in pairs if pair in found), [])


LATER_S = 0.001
"""Whoever gave up at an instant goes before the engine that would have answered then."""


def _ratio(now_s: float, then_s: float) -> float:
    if now_s <= 0.0 or then_s <= 0.0:
        return 1.0
    return min(SCALE_MAX, max(1.0 / SCALE_MAX, now_s / then_s))

"""How many requests should run on one engine? The adaptive limit (B8), from no configuration.

A limit the operator gives is used as it is, and what the engine states is never passed. Otherwise it is the smaller of two
that are found:

- *By first tokens*. It starts at `COLD_RUNNING`, since nothing is known of a cold engine, and grows while it is really used and
  first tokens come in time: by one for each of them until something was once too much; from then on by one for a whole
  limit's worth of them, and a little each look, the more the longer nothing was too much (`CALM_RATIO_PER_S`). When a first
  token came later than its prompt and those before it explain by more than `TARGET_RATIO` of the class's promise, or when
  requests wait inside the engine that are not merely on their way to be read, it steps down. What prompts explain is their
  tokens at the speed of the quickest (`Quickest`): long prompts are no sign that too much runs.
- *By the tokens after it*, where a class that asks here promises them. Once a look, what runs is compared with the knee at
  which the promise would break (`core/pace.py`). Too slow: the limit goes down to the knee, by at most a tenth a look. In
  time, and somebody had to wait for this limit: it goes up to the knee, by `GROW_RATIO` a look until it was once too much
  and by `CREEP_RATIO` from then on. A promise that one sequence alone would break says nothing of how many should run.

Unused, neither moves: the application is the limit then. How long an answer takes as a whole says nothing of either: that is
how long it is.
"""

from __future__ import annotations

from headworks.core.pace import Pace
from headworks.core.stats import Window

COLD_RUNNING = 8
TARGET_RATIO = 0.6
DOWN_RATIO, DOWN_RATIO_MIN = 0.9, 0.7
DOWN_EVERY_S = 0.5
WAITING_SAMPLES = 3
"""So many samples in a row with requests waiting inside the engine mean that it is full, not merely between two steps."""
GROW_RATIO, CREEP_RATIO, STEP_DOWN_RATIO = 1.25, 1.04, 0.9
CALM_RATIO_PER_S = 0.002
"""After twenty seconds in which nothing was too much the limit creeps as quickly as towards a knee."""
READINGS, QUICK_RATIO, AHEAD_RATIO_MAX = 64, 0.25, 0.25
READING_DRIFT = 1.0005
"""A quick reading is forgotten by this factor with each one: doubled after 1,400 of them."""
LONG_TOKENS = 8192
"""What takes longer to read than from one look to the next, half a second: that much unread at both is one long read."""
NO_LIMIT = float("inf")


class Quickest:
    """How long a token of a prompt takes to be read when nothing is in its way: what a quarter of recent ones stayed under.

    Only prompts are asked that found next to nothing before them: how much of those before has been read already is not
    known. Not the very quickest: some prompts are cached. And not by what is usual of late: where everything is late, that
    would explain it.
    """

    __slots__ = ("_token_s", "_tokens_s")

    def __init__(self) -> None:
        self._tokens_s = Window(READINGS)
        self._token_s = NO_LIMIT

    def excess_s(self, took_s: float, prompt_tokens: int, ahead_tokens: int, is_sized: bool) -> float:
        """What a first token took beyond reading its prompt and those before it. `is_sized`: no mere bound of its tokens."""
        if is_sized and ahead_tokens <= AHEAD_RATIO_MAX * prompt_tokens and prompt_tokens > 0:
            self._tokens_s.add(took_s / prompt_tokens)
            self._token_s = min(self._token_s * READING_DRIFT, self._tokens_s.quantile(QUICK_RATIO))
        return took_s - (self._token_s if len(self._tokens_s) else 0.0) * (prompt_tokens + ahead_tokens)


class RunningLimit:
    """The limit of one replica."""

    __slots__ = (
        "_by_first_tokens",
        "_by_pace",
        "_down_s",
        "_fixed",
        "_is_tenable",
        "_looked_s",
        "_places",
        "_promise_s",
        "_quickest",
        "_running",
        "_sought",
        "_unread_tokens",
        "_untroubled",
        "_waiting_samples",
        "pace",
        "reached",
        "value",
    )

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._by_first_tokens = float(COLD_RUNNING)
        self._by_pace = NO_LIMIT
        self._places = NO_LIMIT
        """How many the engine runs at once, where it says so."""
        self._promise_s: float | None = None
        self._untroubled = True
        """No first token has been too late yet."""
        self._sought = True
        """No step has been too slow yet: the knee is still far."""
        self._is_tenable = True
        """One sequence alone would have its tokens in time."""
        self._down_s = float("-inf")
        self._waiting_samples = 0
        self._running = 0
        """What ran at the last look."""
        self._looked_s = 0.0
        self._unread_tokens = 0
        """Of prompts, at the last look."""
        self._quickest = Quickest()
        self.pace = Pace()
        self.reached = False
        """Somebody had to wait for it since the last look."""
        self.value = COLD_RUNNING if fixed is None else fixed
        """Places in the running batch now."""

    def fix(self, fixed: int | None) -> None:
        """A reload states a limit, or takes it away."""
        self._fixed = fixed
        self._set()

    def hold(self, places: int | None) -> None:
        """The engine says how many it runs at once: more would wait inside it, where their clients' leaving is noticed late."""
        self._places = NO_LIMIT if places is None else places
        self._set()

    @property
    def is_known(self) -> bool:
        """It was given, or something was once too much: more than it could not run. Before, it only follows its use."""
        return self._fixed is not None or not self._untroubled or not self._sought

    def occupancy_ratio(self, running: int) -> float | None:
        """How much of the batch that keeps the promise on tokens is taken by so many; None while that is not measured."""
        if self._promise_s is None or not self.pace.is_fitted or not self._is_tenable:
            return None
        knee = self.pace.knee(self._promise_s)
        return running / knee if knee else None

    # by first tokens

    def first_token(
        self,
        took_s: float,
        promise_s: float | None,
        running: int,
        now_s: float,
        prompt_tokens: int = 0,
        ahead_tokens: int = 0,
        is_sized: bool = True,
    ) -> None:
        """A first token came after `took_s` in the engine, with `running` of our requests there.

        `prompt_tokens` and `ahead_tokens` of other prompts had to be read before it. Without a promise nobody minds how long
        it took, and it counts like an answer in one piece.
        """
        if self._fixed is not None:
            return
        excess_s = self._quickest.excess_s(took_s, prompt_tokens, ahead_tokens, is_sized)
        if promise_s is None:
            self.ended(running)
        elif excess_s > TARGET_RATIO * promise_s:
            self._down(running, now_s)
        else:
            self._up(running)

    def ended(self, running: int) -> None:
        """An answer whose first token says nothing: all it tells is that an engine with nothing waiting inside keeps up."""
        if self._fixed is None and not self._waiting_samples:
            self._up(running)

    def sampled(self, running: int, waiting: int, now_s: float) -> None:
        """The engine's own gauges. What waits there waits for a place: `running` is all it takes."""
        if self._fixed is not None:
            return
        self._waiting_samples = self._waiting_samples + 1 if waiting > 1 else 0
        if self._waiting_samples >= WAITING_SAMPLES and running > 0:
            self._waiting_samples = 0
            self._untroubled = False
            self._by_first_tokens = min(self._by_first_tokens, running)
            self._down_s = now_s
            self._set()

    def _up(self, running: int) -> None:
        reached = self.reached or running >= self.value
        if reached and self._by_first_tokens <= min(self._by_pace, self._places):
            self._by_first_tokens += 1.0 if self._untroubled else 1.0 / self._by_first_tokens
            self._set()

    def _down(self, running: int, now_s: float) -> None:
        self._untroubled = False
        if now_s - self._down_s < DOWN_EVERY_S:
            return
        self._down_s = now_s
        lowest = self._by_first_tokens * DOWN_RATIO_MIN  # where few run, something else made it late
        self._by_first_tokens = max(1.0, lowest, min(self._by_first_tokens, running) * DOWN_RATIO)
        self._set()

    # by the tokens after it

    def look(
        self,
        running: int | None,
        requests: int,
        step_s: float | None,
        promise_s: float | None,
        now_s: float,
        unread_tokens: int = 0,
    ) -> None:
        """Once a look: `running` in the engine and `step_s` by its clock as far as it says, `requests` of ours there."""
        reached, self.reached = self.reached, False
        before, self._running = self._running, running or 0
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        reads = min(unread_tokens, self._unread_tokens) >= LONG_TOKENS
        self._unread_tokens = unread_tokens
        self._promise(promise_s)
        if reached:
            self._creep(now_s)
        if promise_s is None:
            return
        if step_s is not None:
            mean = (before + self._running) / 2
            if not before or not running or mean < self.value / 2:
                return  # it may have stood still in between, or is far from what would be too much
            self.pace.saw(mean, step_s, elapsed_s, clocked=True, reads=reads)
        else:
            slow_s = self.pace.slow_answers_s()
            if slow_s is None:
                return
            self.pace.saw(float(max(requests, 1)), slow_s, elapsed_s, clocked=False)
            self.pace.since_s = now_s
        self._follow(promise_s, reached)

    def _creep(self, now_s: float) -> None:
        """Somebody had to wait for a limit that first tokens once lowered: perhaps for nothing any more."""
        if self._fixed is None and not self._untroubled and self._by_first_tokens <= self._by_pace:
            further = CALM_RATIO_PER_S * (now_s - self._down_s)
            self._by_first_tokens *= 1.0 + min(max(further, 0.0), CREEP_RATIO - 1.0)
            self._set()

    def _promise(self, promise_s: float | None) -> None:
        """Who promises tokens may have changed."""
        if promise_s == self._promise_s:
            return
        self._promise_s = promise_s
        if promise_s is None:
            self._by_pace = NO_LIMIT
        else:
            self._by_pace = (self.pace.knee(promise_s) if self.pace.is_fitted else None) or float(COLD_RUNNING)
        self._set()

    def _follow(self, promise_s: float, reached: bool) -> None:
        knee = self.pace.knee(promise_s)
        if knee is None:
            return
        self._is_tenable = not self.pace.is_fitted or self.pace.step_s(1.0) <= promise_s
        if not self._is_tenable:
            self._by_pace = NO_LIMIT
        elif self.pace.is_slow(promise_s):
            self._sought = False
            self._by_pace = max(1.0, min(self._by_pace, max(knee, self.value * STEP_DOWN_RATIO)))
        elif reached and (self._untroubled or self._by_pace <= self._by_first_tokens):
            further = max(self._by_pace + 1.0, self._by_pace * (GROW_RATIO if self._sought else CREEP_RATIO))
            # A slope that was never measured is a guess on the safe side: one more at a time measures it.
            least = self._by_pace if self.pace.is_fitted else self._by_pace + 1.0
            self._by_pace = max(least, min(knee, further))
            if self._untroubled:  # as long as no first token was too late, the tokens after it decide alone
                self._by_first_tokens = max(self._by_first_tokens, self._by_pace)
        self._set()

    def _set(self) -> None:
        found = min(self._by_first_tokens, self._by_pace) if self._fixed is None else self._fixed
        self.value = max(1, int(min(found, self._places)))

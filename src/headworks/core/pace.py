"""How many sequences may run side by side on one engine before each gets its tokens too slowly? (B8; B4's step occupancy)

An engine that batches makes one token of every running sequence in each step. So the time T of a step is what each of them
waits for its next token, and it grows with the number n of them. Pairs of n and T are seen whenever the engine is looked
at: its progress clock says how long a step took, its gauge how many ran. Near what is seen now,

    T(n) = T + slope · (n − at)          knee = at + (AIM_RATIO · promise ÷ spread − T) ÷ slope

The promise is about whole answers, so what is slow for a moment breaks none that is much longer: the level (`at`, T) is a mean
over half the time answers take, and follows a change of the engine's speed as quickly as they do. While long prompts are read
it is steps that are averaged, not time: what an answer waits for a token is its time ÷ its tokens, and a minute of which half
went by in steps ten times as long had most of its tokens in the other half. The slope is fitted by
least squares with forgetting, and believed only where it is twice its own error; before that, and after a jump, it is that
of a line through the origin, which never promises too much where a step has a fixed part. *Spread* is the 95th
percentile of what answers waited for a token ÷ what a step took while they ended: uneven steps need more room, and an engine
that makes several tokens in a step needs less.

An engine without a progress clock shows T by its answers alone, which are slow to tell: there a pair is what the answers
took that began after the last change.
"""

from __future__ import annotations

AIM_RATIO = 0.99
"""The knee is where so much of the promise is used: a little below it, since what is seen lags behind what is."""
LEVEL_WEIGHT_MAX = 0.3
"""Of the newest look, in the level, however short answers are."""
STEP_S_MIN = 1e-6
ANSWER_S = 4.0
"""How long answers take, before any has ended."""
KEEP_RATIO = 0.9
"""Each pair weighs so much of the next in the slope: half a dozen looks, three seconds."""
SPAN_RATIO, SPAN_MIN = 0.03, 0.7
"""There is a slope to be seen where n has spread by this share of itself, and by so many sequences."""
ERRORS, PAIRS_MIN = 2.0, 2.5
"""A slope is believed from so many times its own standard error on; two pairs have none."""
JUMP_RATIO = 0.3
"""A pair so far from the line and the level is passed over. Nothing else for a quarter of an answer: it is another engine."""
SLOPE_RATIO_MIN, SLOPE_RATIO_MAX = 0.1, 5.0
"""Of the slope through the origin. Steeper is a knee in the literal sense; flatter is not told from noise."""
ANSWERS_MIN, ANSWERS_MAX = 16, 256
SPREAD_WEIGHT, ANSWER_WEIGHT = 0.1, 0.05
SPREAD_MIN, SPREAD_MAX = 0.2, 1.5
SEVERAL_RATIO = 0.8
"""A spread below it is that of an engine that makes several tokens in a step; between it and 1 it is 1."""


class Pace:
    """The step time of one engine as a function of what runs there."""

    __slots__ = (
        "_answer_s",
        "_answers_s",
        "_at",
        "_odd",
        "_odd_s",
        "_spread",
        "_step_s",
        "_sums",
        "_weight",
        "is_fitted",
        "since_s",
        "slope_s",
    )

    def __init__(self) -> None:
        self._answers_s: list[float] = []
        """What recent answers waited for a token."""
        self._answer_s = ANSWER_S
        self.since_s = float("-inf")
        """Answers that began before this time ran at another limit."""
        self._spread = 1.0
        self._restart(0.0, 0.0)

    def _restart(self, running: float, step_s: float) -> None:
        """From here on this is all that is known."""
        self._at, self._step_s = running, step_s
        self._weight = 0.0
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._odd, self._odd_s = 0, 0.0
        self.is_fitted = False
        """The slope was measured."""
        self.slope_s = step_s / running if running else 0.0
        """How much longer a step takes for one sequence more."""

    def answered(self, token_s: float, answer_s: float) -> None:
        """An answer has ended, which waited so long for each token after its first, and so long for all of them."""
        self._answer_s += (answer_s - self._answer_s) * ANSWER_WEIGHT
        if len(self._answers_s) < ANSWERS_MAX:
            self._answers_s.append(token_s)

    def slow_answers_s(self) -> float | None:
        """The 95th percentile of the answers since the last time; None while they are too few."""
        answers_s = self._answers_s
        if len(answers_s) < ANSWERS_MIN:
            return None
        self._answers_s = []
        answers_s.sort()
        return answers_s[(len(answers_s) - 1) * 95 // 100]

    def saw(self, running: float, step_s: float, elapsed_s: float, clocked: bool, reads: bool = False) -> None:
        """A step took so long while so many ran, for this time. `clocked`: by the engine's own clock, not by the answers.

        `reads`: it read long prompts all the while. Then a step that is odd tells of them: the same engine, as slow as that for
        whoever waits for a token, and no word on how many should run.
        """
        if step_s < STEP_S_MIN:
            return  # two events of one turn, which no clock can tell apart
        if not self._at:
            self._restart(running, step_s)
        is_odd = self._is_odd(running, step_s)
        if is_odd and not reads:
            self._odd, self._odd_s = self._odd + 1, self._odd_s + elapsed_s
            if self._odd < 2 or self._odd_s < self._answer_s / 4:
                return  # a long prompt on its way, perhaps
            self._restart(running, step_s)
        weight = min(LEVEL_WEIGHT_MAX, 2.0 * elapsed_s / self._answer_s) if clocked else LEVEL_WEIGHT_MAX
        if reads:  # of the steps, not of the time: these are far longer than what they are averaged with
            weight *= self._step_s / ((1.0 - weight) * step_s + weight * self._step_s)
        self._at += (running - self._at) * weight
        self._step_s += (step_s - self._step_s) * weight
        if is_odd and reads:
            return
        self._odd, self._odd_s = 0, 0.0
        self._fit(running, step_s)
        slow_s = self.slow_answers_s() if clocked else None
        if slow_s is not None:
            spread = min(max(slow_s / self._step_s, SPREAD_MIN), SPREAD_MAX)
            self._spread += (spread - self._spread) * SPREAD_WEIGHT

    def _is_odd(self, running: float, step_s: float) -> bool:
        """Neither what it was of late nor what the line says, nor between the two."""
        line_s = self.step_s(running)
        low_s, high_s = min(line_s, self._step_s), max(line_s, self._step_s)
        return step_s < low_s * (1.0 - JUMP_RATIO) or step_s > high_s * (1.0 + JUMP_RATIO)

    def _fit(self, running: float, step_s: float) -> None:
        keep, (sum_n, sum_t, sum_nn, sum_nt, sum_tt) = KEEP_RATIO, self._sums
        self._weight = weight = self._weight * keep + 1.0
        self._sums = sum_n, sum_t, sum_nn, sum_nt, sum_tt = (
            sum_n * keep + running,
            sum_t * keep + step_s,
            sum_nn * keep + running * running,
            sum_nt * keep + running * step_s,
            sum_tt * keep + step_s * step_s,
        )
        mean_n, mean_t = sum_n / weight, sum_t / weight
        variance = sum_nn / weight - mean_n * mean_n
        if variance > max(SPAN_MIN, SPAN_RATIO * mean_n) ** 2:
            slope_s = (sum_nt / weight - mean_n * mean_t) / variance
            left = max(0.0, sum_tt / weight - mean_t * mean_t - slope_s * slope_s * variance)
            if weight > PAIRS_MIN and slope_s > 0.0 and slope_s**2 * variance * (weight - 2.0) > ERRORS**2 * left:
                self.slope_s, self.is_fitted = slope_s, True
        through_origin = self._step_s / self._at
        self.slope_s = min(max(self.slope_s, SLOPE_RATIO_MIN * through_origin), SLOPE_RATIO_MAX * through_origin)

    def step_s(self, running: float) -> float:
        """What a step would take with so many."""
        return max(self._step_s + self.slope_s * (running - self._at), 0.1 * self._step_s)

    @property
    def spread(self) -> float:
        """What the slowest answers wait for a token, in steps."""
        return self._spread if self._spread > 1.0 or self._spread < SEVERAL_RATIO else 1.0

    def is_slow(self, promise_s: float) -> bool:
        """What runs now is too much for the promise, or all but."""
        return self._step_s * self.spread > AIM_RATIO * promise_s

    def knee(self, promise_s: float) -> float | None:
        """The most that may run for the promise to hold; None before anything was seen."""
        if not self._at:
            return None
        return max(1.0, self._at + (AIM_RATIO * promise_s / self.spread - self._step_s) / self.slope_s)

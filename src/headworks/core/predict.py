"""How long will it take? Waits from the measured drain rate, first tokens from the engine's own recent behaviour.

    W_est = work waiting ahead ÷ drain rate            (B2; ahead is the whole fleet's)
    TTFT  = W_est + t_prefill

The drain rate is tokens granted per second, counted only over gaps between two grants in which work was waiting all
the time: an idle pool says nothing about how fast it could be. It is unknown until `GAPS_MIN` such gaps were seen, and
unknown is reported as None, never as zero.

t_prefill is the time from sending to the first byte: a plane in its own prompt tokens and in those ahead of it,
fitted with forgetting, plus the `UPPER_RATIO` quantile of what recent requests took beyond it. It thus contains the
engine's own scheduling delay at today's load, which is what a deadline has to leave room for.
"""

from __future__ import annotations

from collections import deque
from math import sqrt

from headworks.core.stats import FittedLine, FittedPlane, Window

GAPS_MIN = 4
GAPS_MAX = 64
WINDOW_S = 20.0
"""Gaps older than this many seconds of backlog no longer count."""
UPPER_RATIO = 0.95
SPREADS = 3.0
"""So many standard deviations above the mean of a sum of random gaps are rarely passed: who is let wait should be served."""
OBSERVATIONS_MIN = 5
FRESH_S = 3.0
"""What first tokens took under load is believed this long after the last one."""
AHEAD_WEIGHT = 0.1


class DrainRate:
    """Tokens and requests per second that leave the queue of one pool while something waits."""

    __slots__ = (
        "_gap_s",
        "_gap_s_squared",
        "_gaps",
        "_last_s",
        "_requests",
        "_tokens",
        "is_backlogged",
        "requests_per_s",
        "spread_s",
        "tokens_per_s",
    )

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, int, int]] = deque()
        self._gap_s = 0.0
        self._gap_s_squared = 0.0
        self._tokens = 0
        self._requests = 0
        self._last_s: float | None = None
        self.is_backlogged = False
        """Something still waited after the last grant."""
        self.tokens_per_s: float | None = None
        """None until it has been measured."""
        self.requests_per_s: float | None = None
        """The service rate μ̂ in requests, measured the same way."""
        self.spread_s = 0.0
        """Standard deviation of one gap between two grants."""

    def granted(self, tokens: int, requests: int, backlogged: bool, now_s: float) -> None:
        """A grant happened; `backlogged`: something still waits after it."""
        if self.is_backlogged and self._last_s is not None:
            self._add(max(0.0, now_s - self._last_s), tokens, requests)
        self._last_s = now_s
        self.is_backlogged = backlogged

    def emptied(self) -> None:
        """Nothing waits any more, other than by a grant: the running gap says nothing."""
        self.is_backlogged = False

    def _add(self, gap_s: float, tokens: int, requests: int) -> None:
        self._gaps.append((gap_s, tokens, requests))
        self._gap_s += gap_s
        self._gap_s_squared += gap_s * gap_s
        self._tokens += tokens
        self._requests += requests
        while len(self._gaps) > GAPS_MAX or (self._gap_s > WINDOW_S and len(self._gaps) > GAPS_MIN):
            gone_s, gone_tokens, gone_requests = self._gaps.popleft()
            self._gap_s -= gone_s
            self._gap_s_squared -= gone_s * gone_s
            self._tokens -= gone_tokens
            self._requests -= gone_requests
        if len(self._gaps) >= GAPS_MIN and self._gap_s > 0.0:
            self.tokens_per_s = self._tokens / self._gap_s
            self.requests_per_s = self._requests / self._gap_s
            mean_s = self._gap_s / len(self._gaps)
            self.spread_s = sqrt(max(0.0, self._gap_s_squared / len(self._gaps) - mean_s * mean_s))

    def wait_most_s(self, wait_s: float, ahead: int) -> float:
        """What a wait of `wait_s` behind `ahead` requests stays under nearly always.

        Whoever has k ahead starts at the (k+1)th grant from now. Grants come at random, so that takes the mean of k + 1
        gaps and `SPREADS` standard deviations of their sum.
        """
        if not self.requests_per_s:
            return wait_s
        return wait_s + 1.0 / self.requests_per_s + SPREADS * self.spread_s * sqrt(ahead + 1)


class PrefillTime:
    """Seconds from sending a request to its first byte, by what the engine has to read before it.

    What decides is its own prompt and those that were sent before it and have not shown a first byte. How much each of them
    counts is fitted: an engine that reads prompts in the order they come makes both count alike, one that lets short ones
    pass long ones makes a short one wait hardly at all. A burst into an idle engine is thus foreseen by the tokens it
    brings, not found out by the first of it that comes too late. What is left over is kept by the size of the prompt, since
    a document's seconds are not a question's.

    An engine that has nothing of ours is judged by what was seen of it alone: what was measured under load says nothing
    about it, and would keep an idle engine idle for ever. For the same reason both are forgotten `FRESH_S` after the last
    such measurement: an estimate past the promise refuses everybody who could correct it. After a first wave that
    overfilled the engine one request at a time would be let in for ever; after one slow answer alone, which is what an
    engine's very first is, none.
    """

    __slots__ = ("_ahead_tokens", "_alone", "_alone_s", "_count", "_loaded_s", "_over", "_plane")

    def __init__(self) -> None:
        self._alone = FittedLine(keep_ratio=0.97)
        self._alone_s = 0.0
        """When it was last seen to begin an answer with nothing else of ours in it."""
        self._loaded_s = 0.0
        """When an engine with other work of ours in it was last seen to begin an answer."""
        self._forget_load()

    def _forget_load(self) -> None:
        self._plane = FittedPlane(keep_ratio=0.98)
        self._over: dict[int, Window] = {}
        """What it took beyond the fit, by the size of the prompt: a bin for each factor of four."""
        self._count = 0
        self._ahead_tokens = 0.0
        """What recent requests found ahead of them, on average: what one that has to wait will find when it is sent."""

    def observe(self, prompt_tokens: int, ahead_tokens: int, took_s: float, alone: bool, now_s: float) -> None:
        """It was sent behind `ahead_tokens` of prompts. `alone`: nothing else of ours was in the engine."""
        if alone:
            if now_s - self._alone_s > FRESH_S:
                self._alone = FittedLine(keep_ratio=0.97)
            self._alone_s = now_s
            self._alone.add(prompt_tokens + ahead_tokens, took_s)
        else:
            if now_s - self._loaded_s > FRESH_S:
                self._forget_load()
            self._loaded_s = now_s
        if self._count >= OBSERVATIONS_MIN:
            size = _bin(prompt_tokens)
            over = self._over.get(size)
            if over is None:
                over = self._over[size] = Window(64)
            over.add(took_s - self._plane.at(prompt_tokens, ahead_tokens))
        self._plane.add(prompt_tokens, ahead_tokens, took_s)
        self._count += 1
        self._ahead_tokens += (ahead_tokens - self._ahead_tokens) * AHEAD_WEIGHT

    def upper_s(self, prompt_tokens: int, ahead_tokens: int | None, alone: bool, now_s: float) -> float:
        """What `UPPER_RATIO` of such requests stayed under; 0.0 before anything was seen (a cold engine is tried).

        `ahead_tokens`: prompts being read there now; None for a request that has to wait first.
        """
        if alone or now_s - self._loaded_s > FRESH_S:
            return self._alone.at(prompt_tokens + (ahead_tokens or 0)) if now_s - self._alone_s <= FRESH_S else 0.0
        if self._count < OBSERVATIONS_MIN:
            return 0.0
        over = self._over.get(_bin(prompt_tokens))
        over_s = over.quantile(UPPER_RATIO) if over is not None else 0.0  # below zero where prompts of this size are passed
        return max(0.0, self._plane.at(prompt_tokens, self._ahead_tokens if ahead_tokens is None else ahead_tokens) + over_s)


def _bin(prompt_tokens: int) -> int:
    return prompt_tokens.bit_length() // 2

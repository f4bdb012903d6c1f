"""How long will it take? What is fitted, online, to waits, first tokens and answers of one engine or pool.

    W_est   = work waiting ahead ÷ drain rate          (B2; ahead is the whole fleet's)
    prefill = i + a · own prompt + b · prompts ahead   (C3; from sending to the first byte)
    decode  = (output tokens − 1) · (j + c · batch)    (C3; from the first byte to the end)

All coefficients are zero or above, so more work never takes less time, and each can be said in a sentence. How far the truth
may lie above them is not decided here: `core/forecast.py` puts them together, `core/calibration.py` sets the level.

The drain rate is tokens granted per second, counted only over gaps between two grants in which work was waiting all
the time: an idle pool says nothing about how fast it could be. It is unknown until `GAPS_MIN` such gaps were seen, and
unknown is reported as None, never as zero.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

from headworks.core.stats import FittedLine, FittedPlane, Window

GAPS_MIN = 4
GAPS_MAX = 64
WINDOW_S = 20.0
"""Gaps older than this many seconds of backlog no longer count for what is decided."""
SERVICE_GAPS_MAX = 1024
SERVICE_WINDOW_S = 300.0
"""The same for what is told of a pool: a service rate within ±10 % takes hundreds of gaps (C4)."""
GAP_S_MIN = 1e-6
"""Less is what rounding leaves of a sum, or lies between two events of one turn (`core/instants.py`)."""
NORMAL_95 = 1.96
"""Standard errors on either side that hold 95 % of a mean."""
SPREADS = 3.0
"""So many standard deviations above the mean of a sum of random gaps are rarely passed: who is let wait should be served."""
OBSERVATIONS_MIN = 5
BEYOND_MIN = 20
"""Before so many of its like were seen nobody knows how far the truth may lie above the fit (`predict.buffer_ratio`)."""
BEYOND_KEPT = 100
FRESH_S, FRESH_TIMES = 3.0, 2.0
"""What first tokens took is believed this long after the last one, or so many times what they take, if that is longer: where
prompts take ten seconds to be read, none in three seconds is no news."""
TRY_S = 1.0
TRY_S_MAX = 16.0
"""Of a size that was refused for so long one is tried, whatever is foreseen for it; the more seldom the more that was right."""
TRIAL_WEIGHT = 5
"""One that was tried stands for those that were refused meanwhile."""
AHEAD_WEIGHT = TOOK_WEIGHT = 0.1
DECODED_MIN = 8
"""Answers shorter than this say more of the clock than of the time for each token."""
PLACES_MIN = 8
"""So many run whatever is forecast of their pace: by them it is measured."""


class TokenPromise(NamedTuple):
    """What a class promises of each further token of an answer."""

    each_s: float
    miss_ratio: float
    """The share of requests it is not made for."""
    unit: str
    """What is compared with the places that keep it, in words."""


class DrainRate:
    """Tokens and requests per second that leave the queue of one pool while something waits."""

    __slots__ = (
        "_at_once",
        "_gap_s",
        "_gap_s_squared",
        "_gap_tokens",
        "_gaps",
        "_gaps_max",
        "_last_s",
        "_requests",
        "_tokens",
        "_tokens_squared",
        "_window_s",
        "is_backlogged",
        "longer",
        "requests_per_s",
        "spread_s",
        "tokens_per_s",
    )

    def __init__(self, longer: DrainRate | None = None, gaps_max: int = GAPS_MAX, window_s: float = WINDOW_S) -> None:
        self.longer = longer
        """The same over more gaps: what decides has to be quick to change, what is told of a pool has to be certain (C4)."""
        self._gaps_max = gaps_max
        self._window_s = window_s
        self._gaps: deque[tuple[float, int, int]] = deque()
        self._gap_s = 0.0
        self._at_once = 0
        """Gaps of no time at the end of them."""
        self._gap_s_squared = self._gap_tokens = self._tokens_squared = 0.0
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
            gap_s = now_s - self._last_s
            gap_s = gap_s if gap_s >= GAP_S_MIN else 0.0
            self._add(gap_s, tokens, requests)
            if self.longer is not None:
                self.longer._add(gap_s, tokens, requests)
        self._last_s = now_s
        self.is_backlogged = backlogged

    def emptied(self) -> None:
        """Nothing waits any more, other than by a grant: the running gap says nothing."""
        self.is_backlogged = False

    def _add(self, gap_s: float, tokens: int, requests: int) -> None:
        self._at_once = self._at_once + 1 if gap_s == 0.0 else 0
        if self._at_once > self._gaps_max // 2:  # one window of grants in one instant would say that no time passes
            _, before_tokens, before_requests = self._gaps.pop()
            self._tokens_squared += 2.0 * before_tokens * tokens
            self._gaps.append((0.0, before_tokens + tokens, before_requests + requests))
        else:
            self._gaps.append((gap_s, tokens, requests))
        self._gap_s += gap_s
        self._gap_s_squared += gap_s * gap_s
        self._gap_tokens += gap_s * tokens
        self._tokens_squared += tokens * tokens
        self._tokens += tokens
        self._requests += requests
        while len(self._gaps) > self._gaps_max or (self._gap_s > self._window_s and len(self._gaps) > GAPS_MIN):
            if self._gap_s - self._gaps[0][0] < GAP_S_MIN:
                break  # it is the only one in which time passed
            gone_s, gone_tokens, gone_requests = self._gaps.popleft()
            self._gap_s -= gone_s
            self._gap_s_squared -= gone_s * gone_s
            self._gap_tokens -= gone_s * gone_tokens
            self._tokens_squared -= gone_tokens * gone_tokens
            self._tokens -= gone_tokens
            self._requests -= gone_requests
        if len(self._gaps) >= GAPS_MIN and self._gap_s > 0.0:
            self.tokens_per_s = self._tokens / self._gap_s
            self.requests_per_s = self._requests / self._gap_s
            mean_s = self._gap_s / len(self._gaps)
            self.spread_s = sqrt(max(0.0, self._gap_s_squared / len(self._gaps) - mean_s * mean_s))

    @property
    def requests_error_ratio(self) -> float | None:
        """Half of the 95 % interval of `requests_per_s`, as a part of it: gaps are taken as independent."""
        if self.requests_per_s is None:
            return None
        return NORMAL_95 * self.spread_s * sqrt(len(self._gaps)) / self._gap_s

    @property
    def tokens_error_ratio(self) -> float | None:
        """The same of `tokens_per_s`: a ratio of two sums, so by what each gap's tokens are off the common rate."""
        rate_per_s = self.tokens_per_s
        if not rate_per_s:
            return None
        off = self._tokens_squared - 2.0 * rate_per_s * self._gap_tokens + rate_per_s * rate_per_s * self._gap_s_squared
        return NORMAL_95 * sqrt(max(0.0, off)) / self._tokens

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
    about it, and would keep an idle engine idle for ever. For the same reason both are forgotten some time after the last
    such measurement (`FRESH_S`): an estimate past the promise refuses everybody who could correct it. After a first wave that
    overfilled the engine one request at a time would be let in for ever; after one slow answer alone, which is what an
    engine's very first is, none. Others' first tokens keep the load's fit fresh and do not correct it for a size that is
    refused: of that one is *tried* now and then, the seldomer the better what was foreseen for those tried before.
    """

    __slots__ = (
        "_ahead_tokens",
        "_alone",
        "_alone_beyond",
        "_alone_s",
        "_beyond",
        "_count",
        "_loaded_s",
        "_on_trial",
        "_plane",
        "_refused_s",
        "_tries",
        "took_s",
    )

    def __init__(self) -> None:
        self.took_s = 0.0
        """What first tokens took of late, on average."""
        self._alone_s = 0.0
        """When it was last seen to begin an answer with nothing else of ours in it."""
        self._loaded_s = 0.0
        """When an engine with other work of ours in it was last seen to begin an answer."""
        self._forget_alone()
        self._forget_load()

    def _forget_alone(self) -> None:
        self._alone = FittedLine(keep_ratio=0.97)
        self._alone_beyond = Window(BEYOND_KEPT)

    def _forget_load(self) -> None:
        self._plane = FittedPlane(keep_ratio=0.99)
        self._beyond: dict[int, Window] = {}
        """What it took beyond the fit, by the size of the prompt: a bin for each factor of four."""
        self._refused_s: dict[int, float] = {}
        """By the same sizes: since when this has refused all of them."""
        self._tries: dict[int, float] = {}
        """After how long one is tried; 1 s where it is not here."""
        self._on_trial: set[int] = set()
        self._count = 0
        self._ahead_tokens = 0.0
        """What recent requests found ahead of them, on average: what one that has to wait will find when it is sent."""

    def refused(self, prompt_tokens: float, now_s: float) -> None:
        """One of this size had room there, and what is foreseen here was against it."""
        self._refused_s.setdefault(size_of(prompt_tokens), now_s)

    def sent(self, prompt_tokens: float, now_s: float) -> None:
        """One of this size goes there now."""
        if self._refused_s:
            size = size_of(prompt_tokens)
            if self._is_trial(size, now_s):
                self._on_trial.add(size)
            self._refused_s.pop(size, None)

    def _is_trial(self, size: int, now_s: float) -> bool:
        refused_s = self._refused_s.get(size)
        return refused_s is not None and now_s - refused_s >= self._tries.get(size, TRY_S)

    def observe(self, prompt_tokens: float, ahead_tokens: int, took_s: float, alone: bool, now_s: float) -> None:
        """It was sent behind `ahead_tokens` of prompts. `alone`: nothing else of ours was in the engine."""
        if alone:
            if self._is_old(self._alone_s, now_s):
                self._forget_alone()
            elif self._alone_s:
                self._alone_beyond.add(took_s - self._alone.at(prompt_tokens + ahead_tokens))
            self._alone_s = now_s
            self._alone.add(prompt_tokens + ahead_tokens, took_s)
        else:
            if self._is_old(self._loaded_s, now_s):
                self._forget_load()
            self._loaded_s = now_s
        self.took_s += (took_s - self.took_s) * TOOK_WEIGHT
        size = size_of(prompt_tokens)
        foreseen_s = self._plane.at(prompt_tokens, ahead_tokens)
        if size in self._on_trial:
            self._tried(size, took_s < foreseen_s)
            for _ in range(TRIAL_WEIGHT - 1):
                self._plane.add(prompt_tokens, ahead_tokens, took_s)
        if self._count >= OBSERVATIONS_MIN:
            beyond = self._beyond.get(size)
            if beyond is None:
                beyond = self._beyond[size] = Window(BEYOND_KEPT)
            beyond.add(took_s - foreseen_s)
        self._plane.add(prompt_tokens, ahead_tokens, took_s)
        self._count += 1
        self._ahead_tokens += (ahead_tokens - self._ahead_tokens) * AHEAD_WEIGHT

    def _is_old(self, seen_s: float, now_s: float) -> bool:
        return now_s - seen_s > max(FRESH_S, FRESH_TIMES * self.took_s)

    def _tried(self, size: int, was_early: bool) -> None:
        """What was foreseen held, or it did not: then how far others were off it says nothing any more."""
        self._on_trial.discard(size)
        if was_early:
            self._tries[size] = TRY_S
            self._beyond.pop(size, None)
        else:
            self._tries[size] = min(TRY_S_MAX, 2.0 * self._tries.get(size, TRY_S))

    def expected(
        self, prompt_tokens: float, ahead_tokens: int | None, alone: bool, now_s: float
    ) -> tuple[float, Window | None] | None:
        """What is fitted, and what its like took beyond that; None before anything was seen (a cold engine is tried).

        `ahead_tokens`: prompts being read there now; None for a request that has to wait first.
        """
        if alone or self._is_old(self._loaded_s, now_s):
            if not self._alone_s or self._is_old(self._alone_s, now_s):
                return None
            return self._alone.at(prompt_tokens + (ahead_tokens or 0)), self._alone_beyond
        if self._count < OBSERVATIONS_MIN:
            return None
        if self._refused_s and ahead_tokens is not None and self._is_trial(size_of(prompt_tokens), now_s):
            return None
        fitted_s = self._plane.at(prompt_tokens, self._ahead_tokens if ahead_tokens is None else ahead_tokens)
        return fitted_s, self._beyond.get(size_of(prompt_tokens))

    def alone_s(self, prompt_tokens: float) -> float:
        """What is fitted for it with no prompt ahead."""
        return self._plane.at(prompt_tokens, 0.0)

    def restarted(self) -> None:
        """Another process answers there: what is fitted is a start, how far it may be off is to be seen again."""
        self._beyond.clear()
        self._alone_beyond = Window(BEYOND_KEPT)

    def coefficients(self) -> tuple[float, float, float]:
        """Seconds, seconds for each own prompt token, and for each one ahead."""
        return self._plane.intercept, self._plane.a, self._plane.b


class DecodeTime:
    """Seconds for each further token of an answer, by how many sequences run beside it.

    The line is forgotten slowly: an engine that is kept full shows one batch only, and what more of them cost would be lost.
    How far the truth is off it is forgotten quickly, so an engine that becomes slow is noticed at once.
    """

    __slots__ = ("_beyond", "_count", "_line")

    def __init__(self) -> None:
        self._line = FittedLine(keep_ratio=0.998)
        self._beyond = Window(BEYOND_KEPT)
        """Observed ÷ fitted."""
        self._count = 0

    def observe(self, batch: float, tokens: int, took_s: float) -> None:
        """`tokens` came in `took_s` after the first, with `batch` sequences running on average."""
        if tokens < DECODED_MIN:
            return
        each_s = took_s / tokens
        if self._count >= OBSERVATIONS_MIN:
            self._beyond.add(each_s / (self._line.at(batch) or each_s or 1.0))
        self._line.add(batch, each_s)
        self._count += 1

    def each_s(self, batch: float) -> float | None:
        """As fitted; None before enough was seen."""
        return self._line.at(batch) if self._count >= OBSERVATIONS_MIN else None

    def places(self, promise: TokenPromise) -> int | None:
        """So many may run for a token to come as quickly as is promised.

        None while nobody knows, where no number is too many, and where not even one alone would be quick enough: then it is
        not the batch that breaks the promise, and no smaller one keeps it.
        """
        if self._beyond.count < BEYOND_MIN:
            return None
        within_s = promise.each_s / max(self._beyond.quantile(1.0 - promise.miss_ratio), 1e-9) - self._line.intercept
        slope_s = self._line.slope
        if slope_s <= 0.0 or within_s < slope_s:
            return None
        return max(PLACES_MIN, int(within_s / slope_s))

    def is_full(self, promise: TokenPromise, running: int) -> bool:
        """More would run than keep the promise."""
        places = self.places(promise) if running > PLACES_MIN else None
        return places is not None and running > places

    def restarted(self) -> None:
        """See `PrefillTime.restarted`."""
        self._beyond = Window(BEYOND_KEPT)

    def coefficients(self) -> tuple[float, float]:
        """Seconds for a token, and how much longer it takes for each sequence in the batch."""
        return self._line.intercept, self._line.slope


def size_of(tokens: float) -> int:
    """The bin of a size: one for each factor of four."""
    return int(tokens).bit_length() // 2

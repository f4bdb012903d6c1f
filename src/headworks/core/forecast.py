"""What is expected of a request, and what became of that: the forecast that decides and stands in the record (B2, C3).

    first token     room:  prefill                 no more than  fitted + what its like took beyond that
                    drain: W_est + prefill         no more than  fitted + so many spreads of the wait
    whole answer    first token + decode           no more than  fitted × what its like came to

`core/predict.py` fits; what its like took beyond the fit is kept by size, and `core/calibration.py` says which quantile of that
`coverage` of the requests stay within. Before `BEYOND_MIN` of its like were seen the bound is the fit times `buffer_ratio`.

A class's promise is for a percentile of its requests: what decides is the bound which that share of them stays within, at the
same calibration (`Tails`). What stands in the record is the bound at the pool's `coverage`.

An answer's length is not known, only what was set aside for it: how much of that such answers come to is part of what their
like came to, so it may be the most that a client allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headworks.core.calibration import Calibration
from headworks.core.predict import BEYOND_KEPT, BEYOND_MIN, TokenPromise, size_of
from headworks.core.stats import Window
from headworks.core.types import Forecast, Work
from headworks.core.unread import to_read_tokens

if TYPE_CHECKING:
    from headworks.core.disciplines import Ahead, Discipline
    from headworks.core.lane import Lane
    from headworks.core.life import Life
    from headworks.core.policy import ClassPolicy
    from headworks.core.pool import Pool
    from headworks.core.replica import Replica

CACHED_WEIGHT = 0.1
FLOWS_MAX = 2_000
"""(class, tenant) pairs that keep what their own answers came to; others go by all answers that might be as long."""

Expected = tuple[float, Window | None]
"""What is fitted, and what its like took beyond that, if enough is known."""


class Tails(NamedTuple):
    """The share of requests that may break a promise of a class, ÷ the share that may pass a bound of its pool."""

    ttft_ratio: float
    e2e_ratio: float


def tails_of(service_class: ClassPolicy, coverage: float) -> Tails:
    """A promise for 95 % is judged, at a coverage of 90 %, by half of the tail that the calibration found."""
    passing = max(1.0 - coverage, 1e-6)
    return Tails((1.0 - service_class.ttft_kept_ratio) / passing, (1.0 - service_class.e2e_kept_ratio) / passing)


class Bounds:
    """What a pool's forecasts came to: by the way they were made, and for whole answers by what was set aside."""

    __slots__ = ("answers", "answers_by_flow", "firsts", "totals", "waits")

    def __init__(self, coverage: float) -> None:
        self.firsts = Calibration(coverage)
        """One level for all first tokens, waited for or not: two would each be off by as much."""
        self.totals = Calibration(coverage)
        self.waits = Window(BEYOND_KEPT)
        """How far first tokens of requests that had to wait came after what was fitted, in spreads of the wait."""
        self.answers: dict[int, Window] = {}
        """How many tokens' time answers came to, by the size of what they might have been; bounded by the sizes there are."""
        self.answers_by_flow: dict[tuple[str, str], Window] = {}
        """The same of each (class, tenant), for the first `FLOWS_MAX` of them; it outlasts a reload."""

    def aim(self, coverage: float) -> None:
        """See `Calibration.aim`."""
        for one in (self.firsts, self.totals):
            if one.coverage != coverage:
                one.aim(coverage)


# before


def forecast_of(work: Work, lane: Lane, replica: Replica | None, discipline: Discipline, now_s: float) -> Forecast:
    """For a newcomer. `replica`: where it would fit now, if anywhere."""
    pool = lane.pool
    buffer_ratio, bounds = pool.policy.buffer_ratio, pool.bounds
    wait_s, most_s, basis = _waiting(work, lane, replica, discipline, now_s)
    spread_s = most_s - wait_s if wait_s is not None and most_s is not None else 0.0
    if spread_s > 0.0 and wait_s is not None:
        most_s = wait_s + spread_s * _spreads(bounds, lane)
    expected = _reading(work, lane, replica, now_s)
    prefill_s, ttft_s, total_s, each_s = 0.0, None, None, None
    ttft_ratio = buffer_ratio
    if expected is not None:
        fitted_s, beyond = expected
        prefill_s = _above(fitted_s, beyond, bounds.firsts.tail_ratio * lane.tails.ttft_ratio, buffer_ratio)
        if wait_s is not None and most_s is not None:
            point_s = wait_s + fitted_s
            if basis == "room":
                ttft_s = _above(fitted_s, beyond, bounds.firsts.tail_ratio, buffer_ratio)
            else:
                ttft_s = _after(point_s, spread_s, bounds, buffer_ratio)
            ttft_ratio = ttft_s / point_s if point_s > 0.0 else buffer_ratio
            each_s, total_s = _whole(work, lane, replica, point_s)
    rate_per_s, error_ratio = pool.drain.tokens_per_s, None if basis == "room" else pool.drain.tokens_error_ratio
    return Forecast(wait_s, prefill_s, ttft_s, total_s, rate_per_s, ttft_ratio, basis, most_s, each_s, error_ratio, spread_s)


def _waiting(
    work: Work, lane: Lane, replica: Replica | None, discipline: Discipline, now_s: float
) -> tuple[float | None, float | None, str]:
    """The wait, what it stays under nearly always, and how both were found."""
    pool = lane.pool
    elsewhere = waiting_inside(pool, now_s)
    nothing_ahead = discipline.nothing_ahead(lane, now_s)
    if replica is not None and nothing_ahead and not elsewhere and lane.tenant_fits(work):
        return 0.0, 0.0, "room"
    ahead = discipline.ahead(lane, now_s)
    wait_s = wait_of(pool, ahead, now_s)
    if wait_s is None:
        return None, None, "unknown"
    if replica is not None and nothing_ahead:
        return wait_s, wait_s, "drain"
    return wait_s, ahead.drain.wait_most_s(wait_s, ahead.requests + elsewhere), "drain"


def _spreads(bounds: Bounds, lane: Lane) -> float:
    """So many spreads its wait may take longer than W_est: what the class's percentile of those that waited stayed within.

    Never more than `predict.SPREADS` of a sum of gaps, which is one here, and that before enough have waited: a few long
    gaps between many short ones make it so much that nobody would be let wait who has any time to lose.
    """
    if bounds.waits.count < BEYOND_MIN:
        return 1.0
    tail_ratio = max(0.0, bounds.firsts.tail_ratio * lane.tails.ttft_ratio)
    return min(1.0, max(0.0, bounds.waits.quantile(1.0 - tail_ratio)))


def wait_of(pool: Pool, ahead: Ahead, now_s: float) -> float | None:
    """W_est: what waits at all gateways and inside the engines, ÷ the rate at which it drains. None while that is not known."""
    tokens_per_s, requests_per_s = ahead.tokens_per_s, pool.drain.requests_per_s
    if ahead.beside.gateways:
        requests_per_s = pool.elsewhere.of(now_s).requests_per_s or requests_per_s
    if not tokens_per_s or not requests_per_s:
        return None
    return ahead.tokens / tokens_per_s + waiting_inside(pool, now_s) / requests_per_s


def waiting_inside(pool: Pool, now_s: float) -> int:
    """Requests waiting inside the engines that are not ours on their way in: they will run before a newcomer."""
    if pool.single is not None:
        return max(0, pool.single.waiting(now_s) - pool.single.opening)
    return sum(max(0, replica.waiting(now_s) - replica.opening) for replica in pool.replicas.values())


def _reading(work: Work, lane: Lane, replica: Replica | None, now_s: float) -> Expected | None:
    """On the replica it would go to, behind the prompts that are being read there; while none has room, on the quickest."""
    prompt_tokens = to_read_tokens(work, lane)
    if replica is not None:
        return replica.prefill.expected(prompt_tokens, replica.unread_tokens, not replica.requests, now_s)
    found = [
        expected
        for one in lane.pool.replicas.values()
        if (expected := one.prefill.expected(prompt_tokens, None, not one.requests, now_s)) is not None
    ]
    return min(found, key=_fitted) if found else None


def prefill_of(work: Work, lane: Lane, replica: Replica, now_s: float) -> float:
    """Sent there now, from then to its first byte, as its class's percentile of such requests stays within; 0 where unknown."""
    expected = _reading(work, lane, replica, now_s)
    if expected is None:
        return 0.0
    bounds, buffer_ratio = lane.pool.bounds, lane.pool.policy.buffer_ratio
    return _above(expected[0], expected[1], bounds.firsts.tail_ratio * lane.tails.ttft_ratio, buffer_ratio)


def _fitted(expected: Expected) -> float:
    return expected[0]


def _above(fitted_s: float, beyond: Window | None, tail_ratio: float, buffer_ratio: float) -> float:
    """What it stays under but for `tail_ratio`. Below the fit where prompts of this size are let pass others."""
    if beyond is None or beyond.count < BEYOND_MIN:
        return fitted_s * buffer_ratio
    return max(0.0, fitted_s + beyond.quantile(1.0 - tail_ratio if tail_ratio > 0.0 else 1.0))


def _after(point_s: float, spread_s: float, bounds: Bounds, buffer_ratio: float) -> float:
    """The same behind a wait, which is off by more the longer it is."""
    if spread_s <= 0.0 or bounds.waits.count < BEYOND_MIN:
        return point_s * buffer_ratio
    return max(0.0, point_s + spread_s * bounds.waits.quantile(1.0 - max(0.0, bounds.firsts.tail_ratio)))


def _whole(work: Work, lane: Lane, replica: Replica | None, point_s: float) -> tuple[float | None, float | None]:
    """The time for a token as fitted, and the bound on the whole answer."""
    pool = lane.pool
    place = replica or _least(pool)
    each_s = place.decode.each_s(place.requests + work.sequences)
    if each_s is None:
        return None, None
    tokens = answer_tokens(work, lane, pool.bounds.totals.tail_ratio)
    return each_s, point_s + each_s * (work.output_tokens if tokens is None else tokens)


def answer_tokens(work: Work, lane: Lane, tail_ratio: float) -> float | None:
    """How many tokens' time all but `tail_ratio` of such answers came to: of its flow, else of those that might be as long."""
    like = lane.answers
    if like is None or like.count < BEYOND_MIN:
        like = lane.pool.bounds.answers.get(size_of(work.output_tokens_max))
    if like is None or like.count < BEYOND_MIN:
        return None
    return min(like.quantile(1.0 - max(0.0, tail_ratio)), float(work.output_tokens_max))


def _least(pool: Pool) -> Replica:
    return pool.single or min((pool.replicas or pool.leaving).values(), key=_requests)


def _requests(replica: Replica) -> int:
    return replica.requests


def whole_answer_s(work: Work, lane: Lane, forecast: Forecast, promise_s: float) -> float | None:
    """The bound that decides about a promise for the whole answer.

    None where too little is known, and where the promise could not be kept in an empty engine either: then it is the answer
    that is too long, no refusal cures that, and every one of them would be in vain.
    """
    place, bounds = _least(lane.pool), lane.pool.bounds
    tokens = answer_tokens(work, lane, bounds.totals.tail_ratio * lane.tails.e2e_ratio)
    each_s, alone_each_s = forecast.tpot_s, place.decode.each_s(work.sequences)
    if tokens is None or forecast.wait_s is None or each_s is None or alone_each_s is None:
        return None
    if place.prefill.alone_s(to_read_tokens(work, lane)) + alone_each_s * tokens > promise_s:
        return None
    return forecast.wait_s + forecast.prefill_s + each_s * tokens


def places_of(pool: Pool, promise: TokenPromise) -> int | None:
    """So many may run on all replicas together for a token to come that quickly; None while nobody knows of each."""
    if pool.single is not None:
        return pool.single.decode.places(promise)
    found = [replica.decode.places(promise) for replica in pool.replicas.values()]
    known = [places for places in found if places is not None]
    return sum(known) if len(known) == len(found) else None


# after


def saw_first_token(life: Life, observes: bool, now_s: float) -> None:
    """Its first token came. `observes`: nothing is held up here, so one that was to wait did not."""
    forecast, bounds = life.forecast, life.lane.pool.bounds
    if forecast.ttft_s is None or (observes and forecast.basis != "room"):
        return
    took_s = now_s - life.request.arrived_s
    opening = life.replica.opening if life.replica is not None else 0
    bounds.firsts.saw(took_s > forecast.ttft_s, opening + life.lane.pool.queue.requests)
    if forecast.basis == "room":
        return
    if forecast.wait_spread_s > 0.0:
        bounds.waits.add((took_s - _point_s(forecast)) / forecast.wait_spread_s)


def _point_s(forecast: Forecast) -> float:
    """The first token as fitted. A bound below all fits is 0, and so was its ratio: then nothing is known of the fit."""
    return (forecast.ttft_s or 0.0) / forecast.buffer_ratio if forecast.buffer_ratio > 0.0 else 0.0


def saw_nothing(life: Life, now_s: float) -> None:
    """It ended before its first token. If its bound had passed by then, that was missed; if not, nobody knows."""
    forecast, bounds = life.forecast, life.lane.pool.bounds
    took_s = now_s - life.request.arrived_s
    if forecast.ttft_s is not None and took_s > forecast.ttft_s:
        bounds.firsts.saw(True)
        if forecast.wait_spread_s > 0.0:  # and by so much at least, had it been sent now
            bounds.waits.add((took_s + forecast.prefill_s - _point_s(forecast)) / forecast.wait_spread_s)


def saw_end(life: Life, observes: bool, now_s: float) -> None:
    """Its answer is whole: how long each token took, and how long all of it."""
    replica, usage, forecast = life.replica, life.usage, life.forecast
    if replica is None or usage is None:
        return
    if life.first_byte_s is not None and life.streamed:
        tokens = usage.output_tokens // life.work.sequences - 1
        batch = (life.batch + replica.requests) / 2.0
        replica.decode.observe(batch, tokens, now_s - life.first_byte_s)
        if life.lane.pool.single is None:
            replica.speed.answered(life.lane.pool.usual, batch, tokens, now_s - life.first_byte_s)
    lane, total_s = life.lane, forecast.total_s
    if usage.cached_tokens or lane.cached_ratio:
        found_ratio = usage.cached_tokens / max(1, usage.prompt_tokens)
        lane.cached_ratio += (found_ratio - lane.cached_ratio) * CACHED_WEIGHT
    if total_s is None or (observes and forecast.basis != "room"):
        return
    bounds, took_s = lane.pool.bounds, now_s - life.request.arrived_s
    bounds.totals.record(took_s > total_s)
    if forecast.ttft_s is None or not forecast.tpot_s:
        return
    came_to = max(0.0, took_s - _point_s(forecast)) / forecast.tpot_s
    within = answer_tokens(life.work, lane, bounds.totals.tail_ratio)
    if within is not None:  # by the bound of now: those given are heard of too late to steer by
        bounds.totals.steer(came_to > within)
    keep_answer(came_to, life.work, lane)


def keep_answer(tokens: float, work: Work, lane: Lane) -> None:
    """An answer came to so many tokens' time."""
    bounds = lane.pool.bounds
    size = size_of(work.output_tokens_max)
    like = bounds.answers.get(size)
    if like is None:
        like = bounds.answers[size] = Window(BEYOND_KEPT)
    like.add(tokens)
    if lane.answers is None and len(bounds.answers_by_flow) < FLOWS_MAX:
        lane.answers = bounds.answers_by_flow.setdefault(lane.flow, Window(BEYOND_KEPT))
    if lane.answers is not None:
        lane.answers.add(tokens)

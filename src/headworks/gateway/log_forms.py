"""Decisions and outcomes as the arrays they are written as (`logs/fields.py`), and the forms these refer to.

A line costs what it has in bytes and in digits. So names stand at the head of a file, what thousands of lines have in common
stands in a form, and times are whole numbers: of nanoseconds, where they are read back to the last bit, of microseconds where
they were only predicted.
"""

from __future__ import annotations

from headworks.core.effects import Outcome, TurnedAway
from headworks.core.types import Decision, Forecast, Request, Usage, Work
from headworks.logs.fields import DECISION, OUTCOME, TURNED_AWAY

FORMS_MAX = 8_192
"""Of one process. What comes when there are so many has its form in itself."""
SHAPES_MAX = 16
"""Sets of comparisons that are forms, of one lane: the scopes of sessions are each other's like in nothing."""
NS_PER_S = 1_000_000_000.0
US_PER_S = 1_000_000.0
EXACT_S_MAX = 9_000_000.0
"""So many seconds of nanoseconds a double has exactly: a machine that runs for longer has its times as decimals."""

LANE = ("gateway", "tenant", "service_class", "model", "pool")
END = ("tenant", "client", "service_class", "model", "pool")
AWAY = ("gateway", "tenant", "client", "service_class", "model", "pool")
"""What decisions have in common, what outcomes have, and what those have that are both."""

Line = list[object]
Rows = tuple[tuple[object, ...], ...]


class Shape:
    """Decisions that compared the same things, and the number of their form."""

    def __init__(self, number: int, rows: Rows) -> None:
        self.number = number
        self.rows = rows
        """Of the first of them."""


class Forms:
    """Those of one log. Whoever asks for a line takes `made` and writes it down before the line."""

    def __init__(self) -> None:
        self._count = 0
        self._shapes: dict[tuple[str, ...], list[Shape]] = {}
        """By gateway, tenant, class, model and pool, or by `AWAY` and the route; the one that was used last is the first."""
        self._ends: dict[tuple[str, str, str, str, str, str, str], int] = {}
        """By tenant, client, class, model, pool, kind of prompt and route."""
        self._last_end = "", "", "", "", "", "", ""
        self._last_number = 0
        """The form of the outcome before."""
        self.made: list[dict[str, object]] = []

    def forget(self, tenant: str) -> list[int]:
        """A tenant is taken out of the log: what comes of it now has forms of its own. Gives the numbers of those of before."""
        self._last_number = 0
        shapes = [name for name in self._shapes if name[1] == tenant]
        ends = [name for name in self._ends if name[0] == tenant]
        return [shape.number for name in shapes for shape in self._shapes.pop(name)] + [self._ends.pop(name) for name in ends]

    def decision(self, decision: Decision, ahead_s: float) -> Line:
        """The line of a decision. `ahead_s`: of Unix time to its clock."""
        forecast, work, name, decided_s = decision.forecast, decision.work, decision.key.request_id, decision.decided_s
        common = decision.gateway, decision.key.tenant, decision.service_class, decision.model, decision.pool
        form, compared = self._compared(LANE, common, decision.rows)
        line: Line = [
            DECISION,
            form,
            decision.id,
            None if name == decision.id else name,
            int((decided_s + ahead_s) * US_PER_S + 0.5),
            exact_ns(decided_s),
            _came_ns(decided_s, decision.waited_s),
            decision.outcome,
            compared,
            whole_us(forecast.prefill_s),
            whole_us(forecast.ttft_s),
            whole_us(forecast.total_s),
            whole_ns(forecast.tpot_s),
            forecast.buffer_ratio,
            forecast.basis,
            work.tokens,
            work.prefill_tokens,
            work.sequences,
            work.kv_tokens,
            work.output_tokens,
            work.basis,
            work.output_tokens_max,
            decision.policy_version,
        ]
        if not _starts_at_once(decision, forecast, work):
            line += [
                decision.reason,
                whole_us(forecast.wait_s),
                whole_us(forecast.wait_most_s),
                whole_us(forecast.wait_spread_s),
                forecast.drain_tokens_per_s,
                forecast.drain_error_ratio,
                work.engine_s,
                work.bound_tokens,
                decision.retry_after_s,
                decision.position,
                decision.degraded,
                decision.at_arrival,
            ]
        return line

    def outcome(self, outcome: Outcome, ahead_s: float) -> Line:
        """The line of an outcome."""
        work, usage, request = outcome.work, outcome.usage, outcome.request
        name, ended_s = outcome.key.request_id, outcome.ended_s
        line: Line = [
            OUTCOME,
            self._ended_as(outcome, request),
            outcome.id,
            None if name == outcome.id else name,
            outcome.execution,
            int((ended_s + ahead_s) * US_PER_S + 0.5),
            outcome.outcome,
            exact_ns(outcome.arrived_s),
            exact_ns(outcome.admitted_s),
            exact_ns(outcome.sent_s),
            exact_ns(outcome.first_byte_s),
            exact_ns(ended_s),
            exact_ns(outcome.told_s),
            work.tokens,
            work.prefill_tokens,
            work.sequences,
            work.kv_tokens,
            work.output_tokens,
            work.basis,
            work.output_tokens_max,
            None if usage is None else _used(usage),
            outcome.evidence,
            outcome.in_slo,
            whole_us(outcome.predicted_ttft_s),
            whole_us(outcome.predicted_total_s),
            outcome.replica,
            None if request is None else _asked(request),
        ]
        if not _ended_as_usual(outcome, work):
            line += [
                outcome.reason,
                outcome.retry,
                work.engine_s,
                work.bound_tokens,
                outcome.unconfirmed_s,
                outcome.grown_tokens,
                outcome.growths,
                outcome.growths_refused,
                outcome.retry_kind,
                outcome.marks,
            ]
        return line

    def turned_away(self, turned: TurnedAway, ahead_s: float) -> Line:
        """The line of what was refused before it was read."""
        decision, request = turned.decision, turned.request
        work, at_s = decision.work, decision.decided_s
        who = decision.gateway, request.key.tenant, request.client, request.service_class, request.model, request.pool
        form, compared = self._compared(AWAY, (*who, request.route), decision.rows)
        return [
            TURNED_AWAY,
            form,
            request.id,
            None,
            int((at_s + ahead_s) * US_PER_S + 0.5),
            exact_ns(at_s),
            exact_ns(request.arrived_s),
            decision.reason,
            compared,
            decision.retry_after_s,
            turned.retry_kind,
            work.tokens,
            work.prefill_tokens,
            work.sequences,
            work.kv_tokens,
            work.output_tokens,
            work.basis,
            work.output_tokens_max,
            work.bound_tokens,
            decision.policy_version,
            request.prompt_bytes,
            request.output_tokens_max,
            request.samples,
            request.stream,
            request.retry_count,
            whole_ns(request.start_by_s - request.arrived_s),
            whole_ns(request.finish_by_s - request.arrived_s),
        ]

    def _compared(self, names: tuple[str, ...], common: tuple[str, ...], rows: Rows) -> tuple[object, list[object]]:
        """The form, and the two numbers of each comparison. `common`: by these names, and at last the route if there is one."""
        shapes = self._shapes.get(common)
        if shapes is None:
            shapes = []
            if len(self._shapes) < FORMS_MAX:
                self._shapes[common] = shapes
        for place in range(len(shapes)):
            shape = shapes[place]
            compared = _numbers(rows, shape.rows)
            if compared is not None:
                if place:
                    shapes[0], shapes[place] = shape, shapes[0]
                return shape.number, compared
        form: dict[str, object] = {**dict(zip(names, common, strict=False)), "verdicts": [_measure(row) for row in rows]}
        if len(common) > len(names):
            form["asked"] = ["text", common[-1]]
        if len(shapes) < SHAPES_MAX and self._count < FORMS_MAX:
            shapes.insert(0, Shape(self._make(form), rows))
            return self._count, [number for row in rows for number in (row[2], row[3])]
        return form, [number for row in rows for number in (row[2], row[3])]

    def _ended_as(self, outcome: Outcome, request: Request | None) -> object:
        """The form of an outcome."""
        kind, route = ("", "") if request is None else (request.prompt_kind, request.route)
        common = (outcome.key.tenant, outcome.client, outcome.service_class, outcome.model, outcome.pool, kind, route)
        if common == self._last_end and self._last_number:  # most end as the one before, which is seen sooner than it is found
            return self._last_number
        number = self._ends.get(common)
        if number is not None:
            self._last_end, self._last_number = common, number
            return number
        form: dict[str, object] = {**dict(zip(END, common, strict=False)), "asked": [kind, route]}
        if self._count >= FORMS_MAX:
            return form
        number = self._ends[common] = self._make(form)
        return number

    def _make(self, form: dict[str, object]) -> int:
        self._count += 1
        self.made.append({"number": self._count, **form})
        return self._count


def _starts_at_once(decision: Decision, forecast: Forecast, work: Work) -> bool:
    """Whether all that the end of its line would say is what is said of a line that ends before."""
    return (
        not decision.reason
        and decision.at_arrival
        and forecast.wait_s == 0.0
        and forecast.wait_most_s == 0.0
        and forecast.wait_spread_s == 0.0
        and forecast.drain_tokens_per_s is None
        and forecast.drain_error_ratio is None
        and work.engine_s == 0.0
        and not work.bound_tokens
        and decision.retry_after_s is None
        and not decision.position
        and not decision.degraded
    )


def _ended_as_usual(outcome: Outcome, work: Work) -> bool:
    """The same of an outcome."""
    return (
        not outcome.reason
        and not outcome.retry
        and work.engine_s == 0.0
        and not work.bound_tokens
        and outcome.unconfirmed_s is None
        and not outcome.grown_tokens
        and not outcome.growths
        and not outcome.growths_refused
        and not outcome.retry_kind
        and outcome.marks is None
    )


def _numbers(rows: Rows, like: Rows) -> list[object] | None:
    """Value and limit of each comparison, if they are the same comparisons."""
    if len(rows) != len(like):
        return None
    found: list[object] = []
    for place in range(len(rows)):
        row, before = rows[place], like[place]
        if _differ(row[1], before[1]) or _differ(row[4], before[4]) or _differ(row[0], before[0]) or _differ(row[5], before[5]):
            return None
        found.append(row[2])
        found.append(row[3])
    return found


def _differ(one: object, other: object) -> bool:
    """Most names are the very same object: that is seen at once."""
    return one is not other and one != other


def _measure(row: tuple[object, ...]) -> list[object]:
    """What a row compares: check, scope, unit, and the reason if it fails."""
    return [row[0], row[1], row[4], row[5]]


def _used(usage: Usage) -> Line:
    return [
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        whole_ns(usage.engine_s),
        usage.end,
        usage.exact,
    ]


def _asked(request: Request) -> Line:
    """What a client asked for, in numbers."""
    return [
        request.prompt_bytes,
        request.prompt_tokens,
        request.output_tokens_max,
        request.output_tokens_min,
        request.samples,
        request.stream,
        request.assembles,
        request.key_given,
        request.retry_count,
        whole_ns(request.start_by_s - request.arrived_s),
        whole_ns(request.finish_by_s - request.arrived_s),
    ]


def exact_ns(at_s: float | None) -> object:
    """An instant: whole nanoseconds if it is exactly so many, as the clock's are; else as it is."""
    if at_s is None or not -EXACT_S_MAX < at_s < EXACT_S_MAX:
        return at_s
    whole = int(at_s * NS_PER_S + 0.5)
    return whole if whole / NS_PER_S == at_s else at_s


def _came_ns(decided_s: float, waited_s: float) -> object:
    """The instant from which it waited."""
    whole = int((decided_s - waited_s) * NS_PER_S + 0.5)
    came_s = whole / NS_PER_S
    return whole if decided_s - came_s == waited_s else decided_s - waited_s


def whole_us(span_s: float | None) -> object:
    """A time to come, to the microsecond; without bound it stays that."""
    return span_s if span_s is None or not -EXACT_S_MAX < span_s < EXACT_S_MAX else int(span_s * US_PER_S + 0.5)


def whole_ns(span_s: float | None) -> object:
    """A span, to the nanosecond."""
    return span_s if span_s is None or not -EXACT_S_MAX < span_s < EXACT_S_MAX else int(span_s * NS_PER_S + 0.5)

"""The tables of `headworks top` as titles, columns and cells: the same for a terminal screen and for one print of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headworks.tools.top_figures import ClassRow, Decided, EngineRow, Figures, FlowRow, LineRow, PoolRow, RefusalRow, TenantRow

NOTHING = "–"
BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class TableText:
    """One table, ready to be drawn."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def heading(figures: Figures) -> str:
    """One line above the tables."""
    mode = "decides and records, refuses nothing" if figures.mode == "observe" else "enforces"
    ledger = "" if figures.ledger_available else "   THE LEDGER DOES NOT ANSWER"
    over = f"rates over {figures.span_s:.1f} s" if figures.span_s > 0 else "rates with the next look"
    return f"{figures.gateway} {mode}   policy {figures.policy_version}   {figures.utc[11:19]} UTC   {over}{ledger}"


def flow(row: FlowRow) -> list[tuple[str, str, float | None]]:
    """What comes and goes: a name, its figure, and the value that is drawn."""
    wasted = _shown(row.wasted_ratio, "{:.0%} of it for nobody".format)
    return [
        ("admitted", _shown(row.admitted_per_s, "{:.1f}/s".format), row.admitted_per_s),
        ("had to wait", _shown(row.queued_per_s, "{:.1f}/s".format), row.queued_per_s),
        ("refused", _shown(row.refused_per_s, "{:.1f}/s".format), row.refused_per_s),
        ("written", f"{_shown(row.output_tokens_per_s, '{:,.0f} tokens/s'.format)}, {wasted}", row.output_tokens_per_s),
    ]


def bars(values: Sequence[float | None]) -> str:
    """Values as bars of eight heights, the largest the highest; a blank where nobody knew."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else BARS[round(value / most * (len(BARS) - 1))] for value in values)


def tables(figures: Figures) -> list[TableText]:
    """All of them."""
    rows = {
        "pools": [_pool(row) for row in figures.pools],
        "classes": [_class(row) for row in figures.classes],
        "queue": [_line(row) for row in figures.queue],
        "tenants": [_tenant(row) for row in figures.tenants],
        "engines": [_engine(row) for row in figures.engines],
        "refusals": [_refusal(row) for row in figures.refusals],
        "decisions": [_decided(row) for row in reversed(figures.decisions)],
    }
    return [TableText(name, title, columns, rows[name]) for name, title, columns in TABLES]


POOL_COLUMNS = ("pool", "running", "reserved tokens", "waiting", "tokens", "engines", "inside", "KV", "drains/s", "orphans")
CLASS_COLUMNS = ("class", "first token p95", "promised", "arrivals/s", "good/s", "good", "refused/s", "waiting")
LINE_COLUMNS = ("class", "tenant", "pool", "waiting", "tokens", "head has waited", "a newcomer would wait")
TENANT_COLUMNS = ("tenant", "tokens", "running", "waiting", "admitted/s", "refused/s", "reserved ÷ used", "covered")
ENGINE_COLUMNS = ("engine", "state", "breaker", "stop evidence", "unproved", "running", "waiting", "KV", "step", "seen")
REFUSAL_COLUMNS = ("reason", "refused/s", "so far")
DECISION_COLUMNS = ("UTC", "tenant", "class", "tokens", "decided", "waited", "id")
TABLES: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("pools", "Pools", POOL_COLUMNS),
    ("classes", "Classes", CLASS_COLUMNS),
    ("queue", "Waiting", LINE_COLUMNS),
    ("tenants", "Tenants", TENANT_COLUMNS),
    ("engines", "Engines", ENGINE_COLUMNS),
    ("refusals", "Refused by reason", REFUSAL_COLUMNS),
    ("decisions", "Last decisions", DECISION_COLUMNS),
)


def _pool(row: PoolRow) -> tuple[str, ...]:
    inside = NOTHING if row.engine_running is None else f"{row.engine_running:,} + {row.engine_waiting or 0:,} waiting"
    oldest = "" if row.orphan_oldest_s is None else f", oldest {row.orphan_oldest_s:.0f} s"
    return (
        row.pool,
        _of(row.running, row.running_max),
        _of(row.reserved_tokens, row.reserved_tokens_max),
        f"{row.waiting:,}",
        f"{row.waiting_tokens:,}",
        f"{row.engines_ready} of {row.engines} ready",
        inside,
        _shown(row.kv_used_ratio, "{:.0%}".format),
        _shown(row.drain_tokens_per_s, "{:,.0f}".format),
        f"{row.orphans:,}{oldest}",
    )


def _class(row: ClassRow) -> tuple[str, ...]:
    return (
        row.service_class,
        _seconds(row.ttft_p95_s),
        _shown(row.ttft_promise_s, "{:g} s".format),
        _shown(row.arrivals_per_s, "{:.1f}".format),
        _shown(row.good_per_s, "{:.1f}".format),
        _shown(row.good_ratio, "{:.0%}".format),
        _shown(row.refused_per_s, "{:.1f}".format),
        f"{row.waiting:,}",
    )


def _line(row: LineRow) -> tuple[str, ...]:
    waits = _seconds(row.head_waited_s), _seconds(row.wait_s)
    return row.service_class, row.tenant, row.pool, f"{row.waiting:,}", f"{row.waiting_tokens:,}", *waits


def _tenant(row: TenantRow) -> tuple[str, ...]:
    return (
        row.tenant,
        _of(row.tokens, row.tokens_max),
        _of(row.running, row.running_max),
        f"{row.waiting:,}",
        _shown(row.admitted_per_s, "{:.1f}".format),
        _shown(row.refused_per_s, "{:.1f}".format),
        _shown(row.reserved_over_used_ratio, "{:.2f}".format),
        _shown(row.covered_ratio, "{:.0%}".format),
    )


def _engine(row: EngineRow) -> tuple[str, ...]:
    return (
        row.engine,
        row.state.replace("_", " "),
        row.breaker.replace("_", " "),
        " ".join(row.evidence) or NOTHING,
        f"{row.unproved:,}",
        NOTHING if row.running is None else _of(row.running, row.running_max),
        _shown(row.waiting, "{:,}".format),
        _shown(row.kv_used_ratio, "{:.0%}".format),
        NOTHING if row.step_s is None else f"{row.step_s * 1000:.1f} ms",
        _seconds(row.sample_age_s),
    )


def _refusal(row: RefusalRow) -> tuple[str, ...]:
    return row.reason, _shown(row.per_s, "{:.1f}".format), f"{row.total:,}"


def _decided(row: Decided) -> tuple[str, ...]:
    outcome = {"admit": "admitted", "queue": "waits", "refuse": "refused"}.get(row.outcome, row.outcome)
    decided = f"{outcome}: {row.reason}" if row.reason else outcome
    waited = f"{row.waited_s:.2f} s" if row.waited_s >= 0.005 else NOTHING
    return row.utc[11:23], row.tenant, row.service_class, f"{row.tokens:,}", decided, waited, row.id


def _of(value: int, limit: int | None) -> str:
    return f"{value:,}" if limit is None else f"{value:,} of {limit:,}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} s"


def _shown(value: float | None, text: Callable[[float], str]) -> str:
    return NOTHING if value is None else text(value)

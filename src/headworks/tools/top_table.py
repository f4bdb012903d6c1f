"""The tables of `headworks top` as titles, columns and cells: the same for a terminal screen and for one print of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headworks.tools.top_figures import ClassRow, Decided, Figures, PoolRow, TenantRow

NOTHING = "–"


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


def tables(figures: Figures) -> list[TableText]:
    """All four."""
    rows = {
        "pools": [_pool(row) for row in figures.pools],
        "tenants": [_tenant(row) for row in figures.tenants],
        "classes": [_class(row) for row in figures.classes],
        "decisions": [_decided(row) for row in reversed(figures.decisions)],
    }
    return [TableText(name, title, columns, rows[name]) for name, title, columns in TABLES]


POOL_COLUMNS = ("pool", "running", "reserved tokens", "waiting", "waiting tokens", "engines", "inside", "KV", "drains/s")
TENANT_COLUMNS = ("tenant", "tokens", "running", "waiting", "admitted/s", "refused/s", "reserved ÷ used", "covered")
CLASS_COLUMNS = ("class", "first token p95", "promised", "arrivals/s", "good/s", "good", "refused/s")
DECISION_COLUMNS = ("UTC", "tenant", "class", "tokens", "decided", "waited", "id")
TABLES: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("pools", "Pools", POOL_COLUMNS),
    ("tenants", "Tenants", TENANT_COLUMNS),
    ("classes", "Classes", CLASS_COLUMNS),
    ("decisions", "Last decisions", DECISION_COLUMNS),
)


def _pool(row: PoolRow) -> tuple[str, ...]:
    inside = NOTHING if row.engine_running is None else f"{row.engine_running:,} + {row.engine_waiting or 0:,} waiting"
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
    )


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


def _class(row: ClassRow) -> tuple[str, ...]:
    return (
        row.service_class,
        _shown(row.ttft_p95_s, "{:.2f} s".format),
        _shown(row.ttft_promise_s, "{:g} s".format),
        _shown(row.arrivals_per_s, "{:.1f}".format),
        _shown(row.good_per_s, "{:.1f}".format),
        _shown(row.good_ratio, "{:.0%}".format),
        _shown(row.refused_per_s, "{:.1f}".format),
    )


def _decided(row: Decided) -> tuple[str, ...]:
    outcome = {"admit": "admitted", "queue": "waits", "refuse": "refused"}.get(row.outcome, row.outcome)
    decided = f"{outcome}: {row.reason}" if row.reason else outcome
    waited = f"{row.waited_s:.2f} s" if row.waited_s >= 0.005 else NOTHING
    return row.utc[11:23], row.tenant, row.service_class, f"{row.tokens:,}", decided, waited, row.id


def _of(value: int, limit: int | None) -> str:
    return f"{value:,}" if limit is None else f"{value:,} of {limit:,}"


def _shown(value: float | None, text: Callable[[float], str]) -> str:
    return NOTHING if value is None else text(value)

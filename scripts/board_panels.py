"""What the three Grafana boards show: rows of panels, each a question an operator has, with its queries.

`$job`, `$pool` and `$tenant` are variables of the board. Names and labels are those of `metrics_table.py`; a test looks.
"""

from __future__ import annotations

from typing import NamedTuple

RATE = "$__rate_interval"


class Query(NamedTuple):
    """One line of a panel, and what it is called there."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One question. `unit` is Grafana's; `limit` draws a line where it begins to matter."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    limit: float | None = None
    width: int = 8
    kind: str = "timeseries"


class Board(NamedTuple):
    """One board: its name in addresses, its title, whom it is for, its variables and its rows."""

    uid: str
    title: str
    description: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def quantile(ratio: float, name: str, by: str, where: str = "") -> str:
    """A quantile of one of our histograms."""
    return f"histogram_quantile({ratio}, sum by (le, {by}) (rate(headworks_{name}_bucket{{{where}}}[{RATE}])))"


def rate(name: str, by: str, where: str = "") -> str:
    """Events a second of one of our counters."""
    return f"sum by ({by}) (rate(headworks_{name}{{{where}}}[{RATE}]))"


JOB, POOL, TENANT = 'job=~"$job"', 'job=~"$job", pool=~"$pool"', 'job=~"$job", tenant=~"$tenant"'
WASTED, OUTPUT = f'{JOB}, kind="wasted"', f'{JOB}, kind="output"'

ON_CALL = Board(
    "headworks-on-call",
    "headworks: on call",
    "One screen: are promises kept, what is refused and why, and is anything broken?",
    (("job", "label_values(headworks_build_info, job)"),),
    (
        (
            "Are promises kept?",
            (
                Panel(
                    "Goodput of the last minute",
                    "Answers that kept every promise of their class ÷ arrivals not refused for their tenant's own limits.",
                    "percentunit",
                    (Query(f"min by (class) (headworks_goodput_ratio{{{JOB}}})", "{{class}}"),),
                    limit=0.9,
                ),
                Panel(
                    "First token, p95",
                    "From arrival, as clients saw it.",
                    "s",
                    (Query(quantile(0.95, "ttft_seconds", "class", JOB), "{{class}}"),),
                ),
                Panel(
                    "Promises missed, by what took the time",
                    "Complete answers outside a limit of their class.",
                    "reqps",
                    (Query(rate("slo_violations_total", "slo, cause", JOB), "{{slo}}: {{cause}}"),),
                ),
            ),
        ),
        (
            "What comes, and what becomes of it?",
            (
                Panel(
                    "Arrivals by outcome",
                    "Every arrival ends in one of these, once.",
                    "reqps",
                    (Query(rate("requests_total", "outcome", JOB), "{{outcome}}"),),
                ),
                Panel(
                    "Refusals by reason",
                    "docs/errors.md says what each means and what helps.",
                    "reqps",
                    (Query(rate("refused_total", "reason", JOB), "{{reason}}"),),
                ),
                Panel(
                    "Waiting",
                    "Requests in the queue, by class.",
                    "short",
                    (Query(f"sum by (class) (headworks_queue_depth{{{JOB}}})", "{{class}}"),),
                    limit=10,
                ),
            ),
        ),
        (
            "Is anything broken?",
            (
                Panel(
                    "Replicas not ready",
                    "Draining, stalled, breaker open or lost.",
                    "short",
                    (
                        Query(
                            f'sum by (replica, state) (headworks_replica_state{{{JOB}, state!="ready"}}) > 0',
                            "{{replica}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Age of the oldest orphan",
                    "Work of a gateway that died: charged until there is evidence that the engine stopped.",
                    "s",
                    (Query(f"max by (pool) (headworks_orphan_age_seconds{{{JOB}}})", "{{pool}}"),),
                    limit=60,
                ),
                Panel(
                    "Ledger",
                    "1 while it answers; a difference that is not zero is a page.",
                    "short",
                    (
                        Query(f"min by (instance) (headworks_ledger_available{{{JOB}}})", "{{instance}} answers"),
                        Query(f"sum by (scope) (headworks_ledger_audit_difference{{{JOB}}})", "{{scope}} differs by"),
                    ),
                ),
                Panel(
                    "Event loop late by, p99",
                    "Of each gateway process.",
                    "s",
                    (Query(quantile(0.99, "loop_lag_seconds", "instance, worker", JOB), "{{instance}} {{worker}}"),),
                    limit=0.1,
                    width=12,
                ),
                Panel(
                    "Memory and open streams",
                    "Of each gateway process.",
                    "short",
                    (
                        Query(f"headworks_rss_bytes{{{JOB}}} / 1048576", "{{instance}} MiB"),
                        Query(f"headworks_open_streams{{{JOB}}}", "{{instance}} streams"),
                    ),
                    width=12,
                ),
            ),
        ),
    ),
)

TENANTS = Board(
    "headworks-tenant",
    "headworks: tenant",
    "What one tenant asks for, gets and uses, beside what it was promised.",
    (
        ("job", "label_values(headworks_build_info, job)"),
        ("tenant", "label_values(headworks_requests_total, tenant)"),
    ),
    (
        (
            "What it asks for, and what becomes of it",
            (
                Panel(
                    "Arrivals by outcome",
                    "First attempts and retries together.",
                    "reqps",
                    (Query(rate("requests_total", "tenant, outcome", TENANT), "{{tenant}} {{outcome}}"),),
                ),
                Panel(
                    "Refusals by reason and client",
                    "A client is one key.",
                    "reqps",
                    (Query(rate("refused_total", "client, reason", TENANT), "{{client}} {{reason}}"),),
                ),
                Panel(
                    "Retries",
                    "Those that kept their return slot, came early, or were over their budget.",
                    "reqps",
                    (Query(rate("retries_total", "tenant, kind", TENANT), "{{tenant}} {{kind}}"),),
                ),
            ),
        ),
        (
            "What it was promised",
            (
                Panel(
                    "First token, p50 and p95",
                    "From arrival.",
                    "s",
                    (
                        Query(quantile(0.5, "ttft_seconds", "tenant, class", TENANT), "{{tenant}} {{class}} p50"),
                        Query(quantile(0.95, "ttft_seconds", "tenant, class", TENANT), "{{tenant}} {{class}} p95"),
                    ),
                ),
                Panel(
                    "Each further token, p95",
                    "Time per output token after the first.",
                    "s",
                    (Query(quantile(0.95, "tpot_seconds", "tenant, class", TENANT), "{{tenant}} {{class}}"),),
                ),
                Panel(
                    "Wait before admission, p95",
                    "From arrival to admission or answer.",
                    "s",
                    (Query(quantile(0.95, "queue_wait_seconds", "tenant, class", TENANT), "{{tenant}} {{class}}"),),
                ),
            ),
        ),
        (
            "What it uses",
            (
                Panel(
                    "Tokens",
                    "Settled usage; wasted: generated for nobody.",
                    "short",
                    (Query(rate("tokens_total", "tenant, kind", TENANT), "{{tenant}} {{kind}} a second"),),
                ),
                Panel(
                    "Held now",
                    "Charged tokens by state.",
                    "short",
                    (
                        Query(
                            f"sum by (tenant, state) (headworks_reserved_tokens{{{TENANT}}})",
                            "{{tenant}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Quota used",
                    "Committed and outstanding, of the running period.",
                    "percentunit",
                    (Query(f"max by (tenant, unit) (headworks_quota_used_ratio{{{TENANT}}})", "{{tenant}} {{unit}}"),),
                    limit=0.8,
                ),
            ),
        ),
    ),
)

CAPACITY = Board(
    "headworks-capacity",
    "headworks: capacity and prediction",
    "Is the pool large enough, is it used, and do forecasts hold?",
    (
        ("job", "label_values(headworks_build_info, job)"),
        ("pool", "label_values(headworks_demanded_tokens, pool)"),
    ),
    (
        (
            "Is the pool large enough?",
            (
                Panel(
                    "Wanted capacity ÷ present",
                    "With hysteresis: what an autoscaler follows (docs/autoscaling.md).",
                    "percentunit",
                    (Query(f"max by (pool) (headworks_scale_wanted_ratio{{{POOL}}})", "{{pool}}"),),
                    limit=1.0,
                ),
                Panel(
                    "Demanded tokens",
                    "Admitted, queued and refused for capacity.",
                    "short",
                    (
                        Query(f"sum by (pool) (headworks_demanded_tokens{{{POOL}}})", "{{pool}} demanded"),
                        Query(f"sum by (pool) (headworks_reserved_tokens{{{POOL}}})", "{{pool}} charged"),
                    ),
                ),
                Panel(
                    "Drain",
                    "Tokens a second that the pool gives back.",
                    "short",
                    (Query(f"sum by (pool) (headworks_drain_tokens_per_second{{{POOL}}})", "{{pool}}"),),
                ),
            ),
        ),
        (
            "Is it used?",
            (
                Panel(
                    "Memory of each engine",
                    "KV cache, at the last look.",
                    "percentunit",
                    (Query(f"headworks_replica_kv_used_ratio{{{JOB}}}", "{{replica}}"),),
                    limit=0.9,
                ),
                Panel(
                    "Running and waiting inside each engine",
                    "An engine with a queue of its own is fed too fast.",
                    "short",
                    (
                        Query(f"headworks_replica_running{{{JOB}}}", "{{replica}} running"),
                        Query(f"headworks_replica_waiting{{{JOB}}}", "{{replica}} waiting"),
                        Query(f"headworks_limit_running{{{JOB}}}", "{{replica}} limit"),
                    ),
                ),
                Panel(
                    "Preemptions",
                    "Inside engines for want of memory, and by the gateway.",
                    "cpm",
                    (Query(f"{rate('preemptions_total', 'pool, by', POOL)} * 60", "{{pool}} by {{by}}"),),
                    limit=1.0,
                ),
                Panel(
                    "Reserved ÷ used, median and p95",
                    "How tight reservations are.",
                    "short",
                    (
                        Query(quantile(0.5, "reserved_over_used_ratio", "class", JOB), "{{class}} p50"),
                        Query(quantile(0.95, "reserved_over_used_ratio", "class", JOB), "{{class}} p95"),
                    ),
                ),
                Panel(
                    "Wasted tokens",
                    "Generated for somebody who had left, ÷ all output.",
                    "percentunit",
                    (
                        Query(
                            f"{rate('tokens_total', 'class', WASTED)} / {rate('tokens_total', 'class', OUTPUT)}",
                            "{{class}}",
                        ),
                    ),
                    limit=0.02,
                ),
                Panel(
                    "From the wish to cancel to the evidence, p95",
                    "While it lasts, the capacity stays charged.",
                    "s",
                    (Query(quantile(0.95, "unconfirmed_seconds", "pool, evidence", POOL), "{{pool}} {{evidence}}"),),
                ),
            ),
        ),
        (
            "Do forecasts hold?",
            (
                Panel(
                    "Coverage",
                    "Observed within the forecast's upper bound, over the last 500. 0.9 is aimed at.",
                    "percentunit",
                    (
                        Query(
                            f"min by (pool, quantity) (headworks_prediction_coverage_ratio{{{POOL}}})",
                            "{{pool}} {{quantity}}",
                        ),
                    ),
                    limit=0.8,
                ),
                Panel(
                    "Observed minus predicted, median and p95",
                    "Below zero: it came sooner than forecast.",
                    "s",
                    (
                        Query(quantile(0.5, "prediction_error_seconds", "pool, quantity", POOL), "{{pool}} {{quantity}} p50"),
                        Query(quantile(0.95, "prediction_error_seconds", "pool, quantity", POOL), "{{pool}} {{quantity}} p95"),
                    ),
                ),
                Panel(
                    "Wait foreseen at arrival, p95",
                    "Beside the wait that came of it.",
                    "s",
                    (
                        Query(quantile(0.95, "wait_predicted_seconds", "class", JOB), "{{class}} foreseen"),
                        Query(quantile(0.95, "queue_wait_seconds", "class", JOB), "{{class}} waited"),
                    ),
                ),
            ),
        ),
    ),
)

BOARDS = (ON_CALL, TENANTS, CAPACITY)

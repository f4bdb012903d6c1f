"""A statement as people read it: a period by its name, amounts that add up as they are printed, CSV, a page (F7).

Amounts are rounded so that what is printed adds up: each is cut to the smallest unit that is shown, and the units that are
missing from the rounded total go to those that lost most by it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from typing import Any

from headworks.core.quota import DAY_S, HOUR_S, Period, period_of
from headworks.gateway.statement import Statement, Sums

PARTS = ("tenant", "client", "model", "pool")
"""What rows may be told apart by, in the order of a row's name."""
CENT = 10_000_000
"""Of a unit of money, in billionths."""
FINE = 10_000
"""What is shown where all of it is less than `FINE_BELOW`."""
FINE_BELOW = 10 * 1_000_000_000
NANO = 1_000_000_000
IDLE = "(idle)"
NAME = re.compile(r"\d{4}-\d{2}(-\d{2}(T\d{2})?)?")
"""A month, a day or an hour of UTC."""


class Unnamed(Exception):
    """What was given names no period, or no part of a row."""


def period_named(name: str) -> Period:
    """`2026-11`, `2026-11-30` or `2026-11-30T14`, all of UTC. Raises `Unnamed`."""
    if NAME.fullmatch(name) is None:
        raise Unnamed(f"{name!r} is no period: a month is 2026-11, a day 2026-11-30, an hour 2026-11-30T14 (UTC).")
    form, length_s = {7: ("%Y-%m", 0), 10: ("%Y-%m-%d", DAY_S), 13: ("%Y-%m-%dT%H", HOUR_S)}[len(name)]
    try:
        begins_s = int(datetime.strptime(name, form).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise Unnamed(f"there is no {name}.") from None
    return Period(name, begins_s, begins_s + length_s) if length_s else period_of("month", begins_s)


def parts_named(by: str) -> tuple[str, ...]:
    """`tenant,model` as names of parts. Raises `Unnamed`."""
    wanted = tuple(part.strip() for part in by.split(","))
    wrong = [part for part in wanted if part not in PARTS]
    if wrong:
        raise Unnamed(f"{wrong[0]!r} is none of {', '.join(PARTS)}.")
    return tuple(part for part in PARTS if part in wanted)


def rows(made: Statement, by: Sequence[str], tenant: str | None = None) -> dict[tuple[str, ...], Sums]:
    """The rows put together by these parts, those that cost most first; one tenant's, if one is named."""
    found: dict[tuple[str, ...], Sums] = {}
    for about, row in made.rows.items():
        if tenant in (None, about[0]):
            name = tuple(about[PARTS.index(part)] for part in by)
            found.setdefault(name, Sums()).add(row)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1].cost_nanomoney, -pair[1].billed_nanomoney, pair[0])))


def apportioned(values: Sequence[int], unit: int) -> list[int]:
    """Amounts in whole units whose sum is the sum of all, rounded."""
    whole = [value // unit for value in values]
    missing = (sum(values) + unit // 2) // unit - sum(whole)
    most_lost = sorted(range(len(values)), key=lambda place: -(values[place] % unit))
    for place in most_lost[:missing]:
        whole[place] += 1
    return whole


def unit_of(total_nanomoney: int) -> int:
    """What amounts are shown in: cents, or less where all of it is little."""
    return CENT if total_nanomoney >= FINE_BELOW else FINE


def amount(units: int, unit: int) -> str:
    """`1,234.56`."""
    digits = len(str(NANO // unit)) - 1
    return f"{units * unit / NANO:,.{digits}f}"


def table(made: Statement, by: Sequence[str]) -> list[tuple[str, ...]]:
    """Lines of text: a head, a row for each name, what was idle, and the total of what is printed above it."""
    found, pools = rows(made, by), made.pools.values()
    idle = sum(pool.idle_nanomoney for pool in pools)
    costs = [value for row in found.values() for value in (row.used_nanomoney, row.wasted_nanomoney)]
    unit = unit_of(sum(costs) + idle)
    shown = apportioned([*costs, idle], unit)
    billed = apportioned([row.billed_nanomoney for row in found.values()], unit)
    avoided = apportioned([row.avoided_nanomoney for row in found.values()], unit)
    lines: list[tuple[str, ...]] = [(*by, "executions", "tokens", "billed", "used", "wasted", "cost", "avoided")]
    for number, (name, row) in enumerate(found.items()):
        used, wasted = shown[2 * number : 2 * number + 2]
        tokens = f"{row.prompt_tokens + row.output_tokens:,}"
        money = (amount(units, unit) for units in (billed[number], used, wasted, used + wasted, avoided[number]))
        lines.append((*name, f"{row.executions:,}", tokens, *money))
    pad, total = ("",) * (len(by) - 1), made.total
    lines.append((IDLE, *pad, "", "", "", "", "", amount(shown[-1], unit), ""))
    tokens = f"{total.prompt_tokens + total.output_tokens:,}"
    sums = (sum(billed), sum(shown[0:-1:2]), sum(shown[1:-1:2]), sum(shown), sum(avoided))
    lines.append(("total", *pad, f"{total.executions:,}", tokens, *(amount(units, unit) for units in sums)))
    return lines


def as_values(made: Statement, by: Sequence[str], tenant: str | None = None) -> dict[str, Any]:
    """Everything, in whole billionths; for a tenant only what is its own."""
    found: dict[str, Any] = {
        "begins": _utc(made.begins_s),
        "ends": _utc(made.ends_s),
        "rows": [
            {**dict(zip(by, name, strict=True)), **asdict(row), "cost_nanomoney": row.cost_nanomoney}
            for name, row in rows(made, by, tenant).items()
        ],
    }
    if tenant is None:
        found["pools"] = {name: asdict(pool) for name, pool in made.pools.items()}
        found["differences"] = made.differences()
        found["unread_lines"] = made.unread
    return found


MONEY = ("billed", "used", "wasted", "cost", "avoided")
COUNTS = ("executions", "prompt_tokens", "cached_tokens", "output_tokens", "reserved_tokens", "billed_tokens")


def as_csv(made: Statement, by: Sequence[str]) -> str:
    """One line a row and one for each pool's idle time, with all nine digits: what a column adds up to is exact."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*by, *COUNTS, *MONEY, "avoided_requests", "avoided_tokens"])
    for name, row in rows(made, by).items():
        counts = [getattr(row, count) for count in COUNTS]
        money = [_decimal(getattr(row, f"{kind}_nanomoney")) for kind in MONEY]
        writer.writerow([*map(_safe, name), *counts, *money, row.avoided_requests, row.avoided_tokens])
    for pool, cost in made.pools.items():
        name = tuple(pool if part == "pool" else IDLE if part == by[0] else "" for part in by)
        writer.writerow([*name, *[0] * len(COUNTS), *["0"] * 3, _decimal(cost.idle_nanomoney), "0", 0, 0])
    return out.getvalue()


def _safe(text: str) -> str:
    """A spreadsheet would take a name that begins like a formula for one."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _decimal(nanomoney: int) -> str:
    return f"{nanomoney // NANO}.{nanomoney % NANO:09}"


def _utc(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def heading(made: Statement) -> str:
    """What it is about, and whether it adds up."""
    wrong = made.differences()
    sums = "; ".join(wrong) if wrong else "All rows and idle time add up to what the pools cost."
    unread = f" {made.unread:,} lines of the journal could not be read." if made.unread else ""
    return f"From {_utc(made.begins_s)} to {_utc(made.ends_s)}. {sums}{unread}"


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>headworks: cost</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, #0000); }}
th:nth-child(-n+{names}), td:nth-child(-n+{names}) {{ text-align: left; }}
tr:last-child {{ font-weight: 600; }}
</style>
<main>
<h1>Cost</h1>
<p>{heading}</p>
<div tabindex="0" role="region" aria-label="Statement"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>
<p>billed: by the price of the tokens. cost: what the engines cost while this was inside, shared with whatever else was.
wasted: of that, for answers nobody got in full. avoided: an estimate of what work would have cost that was not done because
its answer would have come to nobody.</p>
</main>
</html>
"""


def as_page(made: Statement, by: Sequence[str]) -> str:
    """The table as a page that needs nothing else."""
    head, *lines = table(made, by)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    named = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    return PAGE.format(names=len(by), heading=escape(heading(made)), head=named, body=body)

"""`headworks ledger show|audit`: what is held in the ledger of a running gateway, and whether its counters are right."""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, admin_port

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look into the ledger of a running gateway.")
RECORDS_SHOWN_MAX = 50


@app.command()
def show(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what is charged now, by pool and record by record.

    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    _, held = admin_port(admin, config).get("/admin/ledger")
    if as_json:
        _print_json(held)
        return
    console = Console(highlight=False)
    console.print(held["guarantee"], markup=False)
    for pool, tokens in held["tokens"].items():
        console.print(f"pool {pool}: {tokens:,} tokens held", markup=False)
    if held["records"]:
        console.print(_table(held["records"]))
    hidden = held["charged"] - min(len(held["records"]), RECORDS_SHOWN_MAX)
    console.print(f"{held['charged']:,} charged" + (f", {hidden:,} of them not shown" if hidden else ""), markup=False)


@app.command()
def audit(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Recompute every counter of the gate and the ledger from its parts.

    Exit: 0 all are right, 1 one differs, 2 the gateway could not be asked.
    """
    _, found = admin_port(admin, config).get("/admin/ledger/audit")
    if as_json:
        _print_json(found)
    else:
        for difference in found["differences"]:
            typer.echo(difference)
        count = len(found["differences"])
        typer.echo(f"{count} counters differ from the sum of their parts" if count else "every counter is the sum of its parts")
    raise typer.Exit(0 if found["holds"] else 1)


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table("state", "replica", "tenant", "tokens", "seen", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("execution", no_wrap=True, min_width=32)
    for record in records[:RECORDS_SHOWN_MAX]:
        charges = {(scope, unit): amount for scope, unit, amount in record["charges"]}
        scopes = {scope.partition(":")[0]: scope for scope, _ in charges}
        tokens = charges.get((scopes.get("pool", ""), "tokens"), 0)
        cells = (record["state"], record["replica"], scopes.get("tenant", "").partition(":")[2], f"{tokens:,}")
        table.add_row(*(Text(cell) for cell in cells), "yes" if record["seen"] else "no", record["execution"])
    return table


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

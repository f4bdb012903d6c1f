"""`headworks tenant list|freeze|thaw`: take nothing new of a tenant, at once and without its keys being changed (F13).

    freeze     new requests are refused with 403 `tenant_frozen`, those that wait as well; what runs runs on
    thaw       takes it back

What holds for whom, and for how long, is said in the answer. With --config every worker of this host is told.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, ReasonOption, admin_port, declare, print_json

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Freeze a tenant, or thaw it.")

TenantArgument = Annotated[str, typer.Argument(help="The tenant, as the configuration names it.")]


@app.command("list")
def list_all(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show who is frozen, by whom and why, and what was declared lately.

    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    shown = admin_port(admin, config).read("/admin/orders", "frozen", "declared")
    if as_json:
        print_json(shown)
        return
    _print("frozen", shown["frozen"])
    _print_declared(shown["declared"])


@app.command()
def freeze(
    tenant: TenantArgument,
    reason: ReasonOption,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take nothing new of a tenant.

    Exit: 0 it is frozen, 2 it could not be told.
    """
    shown = declare(admin, config, "/admin/tenants/freeze", {"tenant": tenant, "reason": reason})
    _said(shown, f"{tenant} is frozen", as_json)


@app.command()
def thaw(
    tenant: TenantArgument,
    reason: ReasonOption,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a `freeze` back.

    Exit: 0 it is served again, 2 it could not be told.
    """
    shown = declare(admin, config, "/admin/tenants/thaw", {"tenant": tenant, "reason": reason})
    _said(shown, f"{tenant} is served again", as_json)


def _said(shown: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        typer.echo(f"{text} ({shown['holds']})")


def _print(title: str, orders: dict[str, Any]) -> None:
    if not orders:
        typer.echo("nobody is frozen")
        return
    table = Table(title, "by", "since", "why", box=SIMPLE_HEAD, pad_edge=False)
    for name, order in orders.items():
        table.add_row(*map(Text, (name, order["actor"], order["utc"][:19] + "Z", order["reason"])))
    Console(highlight=False).print(table)


def _print_declared(declared: list[dict[str, Any]]) -> None:
    for one in declared:
        what = one["declared"]
        typer.echo(
            f"{one['utc'][:19]}Z {what['actor']}: {what['verb']} {what['subject']}: {what['reason']} ({what['outcome']})"
        )

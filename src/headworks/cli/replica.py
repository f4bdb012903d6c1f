"""`headworks replica list|drain|resume|withdraw`: the engines of a running gateway, and which of them take no more work.

    drain      it ends what it has and gets nothing new; its capacity leaves the pool
    withdraw   the same, and when nothing of it is left it is forgotten: no more looks, no connections
    resume     takes either back

What is told here holds for that gateway, over reloads, until it is resumed or the process ends. For all gateways at once, and
for good, the configuration says it: `drain: true`, or the replica left out; then SIGHUP.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, AdminPort, ConfigOption, JsonOption, ReasonOption, admin_port, could_not_ask

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Show the replicas of a gateway; drain or withdraw one.")
LOOK_S = 0.2

ReplicaArgument = Annotated[str, typer.Argument(help="The replica, as `replica list` names it: POOL/NAME.")]
WaitOption = Annotated[float, typer.Option("--wait", help="Wait so many seconds for it to hold nothing.")]


@app.command("list")
def list_all(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every replica, its state and what it holds.

    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    shown = admin_port(admin, config).read("/admin/replicas", "replicas")["replicas"]
    if as_json:
        _print_json(shown)
        return
    table = Table("replica", "state", "breaker", "running", "tokens", "unproved", "told", box=SIMPLE_HEAD, pad_edge=False)
    for name, one in shown.items():
        state = f"{one['state']}, empty" if one["leaves"] and one["empty"] else one["state"]
        why = one["told"] or ("not in the configuration" if one["withdrawn"] else "")
        cells = (name, state, one["breaker"], f"{one['requests']:,}", f"{one['tokens']:,}", f"{one['unproved']:,}", why)
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)


@app.command()
def drain(
    replica: ReplicaArgument,
    reason: ReasonOption,
    wait_s: WaitOption = 0.0,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a replica no new work. It ends what it has.

    Exit: 0 it drains (with --wait: it holds nothing), 1 it still holds something, 2 it could not be told.
    """
    _leave("drain", replica, reason, wait_s, admin_port(admin, config), as_json)


@app.command()
def withdraw(
    replica: ReplicaArgument,
    reason: ReasonOption,
    wait_s: WaitOption = 0.0,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drain a replica, and forget it when nothing of it is left. What cannot be proved stopped stays charged.

    Where no proof can come any more, since the engine is gone for good, `headworks ledger withdraw` declares that.

    Exit: 0 it leaves (with --wait: it is forgotten), 1 it still holds something, 2 it could not be told.
    """
    _leave("withdraw", replica, reason, wait_s, admin_port(admin, config), as_json)


@app.command()
def resume(
    replica: ReplicaArgument,
    reason: ReasonOption,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a `drain` or `withdraw` back: it gets work again, as soon as it is ready.

    Exit: 0 it is back, 2 it could not be told.
    """
    shown = _tell(admin_port(admin, config), "resume", replica, reason)
    if as_json:
        _print_json(shown)
    else:
        typer.echo(f"{replica} is {shown['state']}")


def _leave(verb: str, replica: str, reason: str, wait_s: float, port: AdminPort, as_json: bool) -> None:
    shown = _tell(port, verb, replica, reason)
    until_s = time.monotonic() + wait_s
    while _holds(shown, verb) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        shown = port.read("/admin/replicas", "replicas")["replicas"].get(replica, {"state": "forgotten"})
    if as_json:
        _print_json({"replica": replica} | shown)
    elif shown["state"] == "forgotten":
        typer.echo(f"{replica} is forgotten")
    else:
        held = f"{shown['requests']:,} running, {shown['unproved']:,} unproved"
        typer.echo(f"{replica} is {shown['state']} and holds {'nothing' if shown['empty'] else held}")
    raise typer.Exit(1 if wait_s and _holds(shown, verb) else 0)


def _holds(shown: dict[str, Any], verb: str) -> bool:
    """What was asked for is not complete yet."""
    return shown["state"] != "forgotten" and (verb == "withdraw" or not shown["empty"])


def _tell(port: AdminPort, verb: str, replica: str, reason: str) -> dict[str, Any]:
    status, body = port.ask("POST", f"/admin/replicas/{verb}", {"replica": replica, "reason": reason})
    if status != 200 or not isinstance(body, dict) or "state" not in body:
        could_not_ask(f"{port.url} answered {status}: {body.get('error', {}).get('message', 'in other words')}")
    return body


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

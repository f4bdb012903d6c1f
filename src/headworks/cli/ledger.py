"""`headworks ledger show|audit`: what is held in the ledger of a running gateway, and whether its counters are right.

`headworks ledger release ID`, `withdraw REPLICA`: what an operator declares, where no evidence can come any more.

`headworks ledger backup|restore FILE`: a copy of a ledger in a file, and back. A backup may be taken while a gateway runs.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, ReasonOption, admin_port, could_not_ask

if TYPE_CHECKING:
    from headworks.ledgers.backup import Kept

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look into a ledger, or keep a copy of it.")
RECORDS_SHOWN_MAX = 50
CONFIG_DEFAULT = Path("headworks.yaml")

LedgerConfigOption = Annotated[Path, typer.Option("--config", help="The file that names the ledger.")]
LedgerOption = Annotated[Path | None, typer.Option("--ledger", help="The ledger's file itself, instead of --config.")]


@app.command()
def show(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what is charged now, by pool and record by record, and what operators have ordered beside the configuration.

    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    port = admin_port(admin, config)
    held = port.read("/admin/ledger", "guarantee", "tokens", "records", "sessions", "charged")
    held["orders"] = port.read("/admin/orders", "holds").get("in_force", [])
    if as_json:
        _print_json(held)
        return
    console = Console(highlight=False)
    console.print(held["guarantee"], markup=False)
    for pool, tokens in held["tokens"].items():
        console.print(f"pool {pool}: {tokens:,} tokens held", markup=False)
    for one in held["sessions"]:
        sums = f"{one['unspent_tokens']:,} unspent, {one['running_tokens']:,} running, {one['spent_tokens']:,} spent"
        console.print(f"session {one['session']}: {sums} of {one['tokens']:,} tokens, {one['left_s']:.0f} s left", markup=False)
    for one in held["orders"]:
        line = f"ordered {one['utc']} by {one['actor']}: {one['verb']} {one['subject'] or 'everybody'}: {one['reason']}"
        console.print(line, markup=False, soft_wrap=True)
    if held["records"]:
        console.print(_table(held["records"]))
    hidden = held["charged"] - min(len(held["records"]), RECORDS_SHOWN_MAX)
    console.print(f"{held['charged']:,} charged" + (f", {hidden:,} of them not shown" if hidden else ""), markup=False)


@app.command()
def audit(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Recompute every counter of the gate and the ledger from its parts.

    Exit: 0 all are right, 1 one differs, 2 the gateway could not be asked.
    """
    found = admin_port(admin, config).read("/admin/ledger/audit", "holds", "differences")
    if as_json:
        _print_json(found)
    else:
        for difference in found["differences"]:
            typer.echo(difference)
        count = len(found["differences"])
        typer.echo(f"{count} counters differ from the sum of their parts" if count else "every counter is the sum of its parts")
    raise typer.Exit(0 if found["holds"] else 1)


@app.command()
def release(
    execution: Annotated[str, typer.Argument(help="The execution, as `ledger show` names it.")],
    reason: ReasonOption,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare that an execution uses nothing any more. Recorded as an operator's word; what still runs is then not counted.

    Exit: 0 it holds nothing now, 1 the ledger knows nothing of it that could be released, 2 the gateway could not be asked.
    """
    said = _declare(admin, config, "release", {"execution": execution, "reason": reason})
    holds_nothing = said["outcome"] == "ok" and said["state"] not in ("STOPPED", "TOMBSTONE")
    if as_json:
        _print_json(said)
    elif holds_nothing:
        typer.echo(f"{execution} is {said['state']} and holds nothing")
    else:
        typer.echo(f"{execution} held nothing" + (f": it is {said['state']}" if said["state"] else ""))
    raise typer.Exit(0 if holds_nothing else 1)


@app.command()
def withdraw(
    replica: Annotated[str, typer.Argument(help="The replica, as `ledger show` names it: POOL/NUMBER.")],
    reason: ReasonOption,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare that a replica's engine is gone, with everything that ran on it. What comes at its address begins anew.

    Exit: 0 nothing is held there now, 2 the gateway could not be asked.
    """
    said = _declare(admin, config, "withdraw", {"replica": replica, "reason": reason})
    if as_json:
        _print_json(said)
    else:
        typer.echo(f"{len(said['ended']):,} executions on {replica} have ended by it")


def _declare(admin: str | None, config: Path | None, verb: str, asked: dict[str, str]) -> Any:
    port = admin_port(admin, config)
    status, body = port.ask("POST", f"/admin/ledger/{verb}", asked)
    if status != 200 or "outcome" not in body:
        could_not_ask(f"{port.url} answered {status}: {body.get('error', {}).get('message', 'in other words')}")
    return body


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    config: LedgerConfigOption = CONFIG_DEFAULT,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the ledger into one file, while its gateway runs or not. Everything in it is copied, stored keys as well.

    Exit: 0 it was written and can be recovered, 2 it could not be.
    """
    from headworks.ledgers.backup import backup as copy

    kept = copy(ledger or _ledger_file(config), file)
    _say(kept, f"{file} written", as_json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    config: LedgerConfigOption = CONFIG_DEFAULT,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the ledger's place, while no gateway runs. What stood there is moved aside.

    Exit: 0 it is in place, 2 it could not be put there, and nothing has changed.
    """
    from headworks.ledgers.backup import restore as put

    kept = put(ledger or _ledger_file(config), file)
    _say(kept, f"{file} restored; what it holds as charged stays so until its engines have been looked at", as_json)


def _ledger_file(config: Path) -> Path:
    from headworks.config import build
    from headworks.config.load import load

    settings = build.settings(load(str(config), os.environ, exposed_ok=True).config_or_raise(), os.environ)
    kind, _, path = settings.ledger_url.partition(":")
    if kind != "sqlite":
        could_not_ask(f"the ledger of {config} is {kind}: there is no file; ledger.url: sqlite:PATH has one")
    return Path(path)


def _say(kept: Kept, sentence: str, as_json: bool) -> None:
    if as_json:
        _print_json(asdict(kept))
        return
    typer.echo(sentence)
    for pool, tokens in kept.tokens.items():
        typer.echo(f"pool {pool}: {tokens:,} tokens held")
    typer.echo(f"{kept.charged:,} charged, {kept.remembered:,} remembered for their keys")


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

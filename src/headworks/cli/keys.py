"""`headworks keys add|rotate|revoke|list`: the API keys of tenants, kept as hashes beside the ledger (H2).

With an admin key a running gateway is asked through its admin port. Without one, or where none runs, the store is asked from
here: the file's permissions, or the shared store's entry, say who may, and every gateway of it sees the change within a
second. A key is printed once, alone on standard output, and is never an argument: what a process was called with can be read
by every user of its machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, AdminPort, JsonOption, admin_port, could_not_ask

if TYPE_CHECKING:
    from headworks.core.policy import Policy
    from headworks.ledgers.key_rules import Keyring

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Issue, rotate, revoke and list the API keys of tenants.")
FILE_DEFAULT = Path("headworks.yaml")
DAY_S = 86_400.0
HOUR_S = 3_600.0
CANNOT = frozenset({400, 404, 409})
"""The desk's statuses of what cannot be done. Any other error: nothing could be asked."""

FileOption = Annotated[Path | None, typer.Option("--config", help=f"The configuration file. Default: {FILE_DEFAULT}")]
DaysOption = Annotated[float | None, typer.Option("--expires-days", min=0.0, help="Days until it expires. Default: never.")]
IdArgument = Annotated[str, typer.Argument(help="The key's id, as headworks keys list shows it. Not the key itself.")]


@app.command()
def add(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose key it is.")] = None,
    classes: Annotated[list[str] | None, typer.Option("--class", help="Only this class; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")] = None,
    for_admin: Annotated[bool, typer.Option("--for-admin", help="A key of the admin port, and of nothing else.")] = False,
    expires_days: DaysOption = None,
    config: FileOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Issue a key. It is shown once, now.

    Exit: 0 it was issued, 1 that cannot be done, 2 neither a gateway nor a store could be asked.
    """
    asked: dict[str, Any] = {"admin": for_admin}
    stated = {"tenant": tenant, "classes": classes or None, "models": models or None}
    asked |= {name: value for name, value in stated.items() if value is not None}
    if expires_days is not None:
        asked["lifetime_s"] = expires_days * DAY_S
    _show_new(_asked(admin, config, "add", asked=asked), as_json)


@app.command()
def rotate(
    name: IdArgument,
    grace_hours: Annotated[float, typer.Option("--grace-hours", min=0.0, help="How long the old key still works.")] = 24.0,
    expires_days: Annotated[
        float | None,
        typer.Option("--expires-days", min=0.0, help="Days until it expires. Default: as the old one had."),
    ] = None,
    config: FileOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Issue a key's successor, with the same scopes. The old one works on for a while, so that clients can change over.

    Exit: 0 it was issued, 1 that cannot be done, 2 neither a gateway nor a store could be asked.
    """
    asked = {"grace_s": grace_hours * HOUR_S}
    if expires_days is not None:
        asked["lifetime_s"] = expires_days * DAY_S
    _show_new(_asked(admin, config, "rotate", name, asked), as_json)


@app.command()
def revoke(name: IdArgument, config: FileOption = None, admin: AdminOption = None, as_json: JsonOption = False) -> None:
    """End a key now. Requests it has been let in with run to their end.

    Exit: 0 it opens nothing any more, 1 there is no such key, 2 neither a gateway nor a store could be asked.
    """
    ended = _asked(admin, config, "revoke", name, {})
    if as_json:
        _print_json(ended)
    else:
        typer.echo(f"key {ended['id']} of {_whose(ended)} is revoked since {_date(ended['revoked_s'])}")


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    config: FileOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored keys: whose they are, what they are good for and until when. Never the keys themselves.

    Exit: 0 they were listed, 2 neither a gateway nor a store could be asked.
    """
    found = _asked(admin, config, "list")
    rows = [key for key in found["keys"] if tenant is None or key["tenant"] == tenant]
    if as_json:
        _print_json({**found, "keys": rows})
        return
    if rows:
        Console(highlight=False).print(_table(rows))
    active = sum(key["state"] == "active" for key in rows)
    typer.echo(f"{len(rows)} stored keys, {active} active, in {found['store']}")


def _asked(admin: str | None, config: Path | None, verb: str, name: str = "", asked: Any = None) -> Any:
    """The answer of a running gateway, or of the file itself. Ends the verb where there is none."""
    from headworks.ledgers.key_rules import KEY_PREFIX

    if name.startswith(KEY_PREFIX):  # and it is repeated nowhere: not in a message, not in a path
        typer.echo("headworks: that is a key itself, which others may have seen by now; name its id, and revoke that", err=True)
        raise typer.Exit(1)
    port, file = _places(admin, config)
    if port is not None:
        status, body = _through(port, verb, name, asked)
    else:
        assert file is not None, "there is a port or a file"
        status, body = _in_store(file, verb, name, asked)
    if status < 300:
        return body
    typer.echo(f"headworks: {body['error']['message']}", err=True)
    raise typer.Exit(1 if status in CANNOT else 2)


def _places(admin: str | None, config: Path | None) -> tuple[AdminPort | None, Path | None]:
    """Whom to ask: the gateway that was named, or that of the file if it has an admin key and runs; else the file."""
    if admin is not None and config is None:
        return admin_port(admin, None), None
    file = config or FILE_DEFAULT
    port = admin_port(admin, file)
    if admin is None and (port.key is None or not port.is_there()):
        return None, file
    if admin is None:
        _, said = port.get("/admin/keys")
        _, keys = _opened(file)
        if keys is not None and said.get("store") != keys.name:
            could_not_ask(
                f"the gateway at {port.url} keeps its keys in {said.get('store')}, not in {keys.name}; say --admin URL"
            )
    return port, None


def _through(port: AdminPort, verb: str, name: str, asked: Any) -> tuple[int, Any]:
    if verb == "list":
        return port.get("/admin/keys")
    if not all(character.isalnum() for character in name):
        return 404, {"error": {"message": f"There is no key {name[:64]!r}; headworks keys list shows the ids."}}
    return port.ask("POST", "/admin/keys" if verb == "add" else f"/admin/keys/{name}/{verb}", asked)


def _in_store(file: Path, verb: str, name: str, asked: Any) -> tuple[int, Any]:
    """What a gateway of this file would answer."""
    from headworks.gateway.key_desk import KeyDesk

    rules, keys = _opened(file)

    async def done() -> tuple[int, Any]:
        try:
            return await KeyDesk(keys, lambda: rules, time.time).do(verb, name, asked)
        finally:
            if keys is not None:
                await keys.close()

    status, body = asyncio.run(done())
    return status, msgspec.to_builtins(body)


def _opened(file: Path) -> tuple[Policy, Keyring | None]:
    """What the file says, and the keys it means. Ends the verb if they cannot be opened."""
    from headworks.config import build
    from headworks.config.load import load
    from headworks.ledgers.base import LedgerError, open_keys
    from headworks.ledgers.keys import VERB_BUSY_S_MAX

    config = load(str(file), os.environ, exposed_ok=True).config_or_raise()
    settings, rules = build.settings(config, os.environ), build.policy(config, number=1)
    given = settings.keys_secret
    try:
        pepper = given.reveal() if given else None
        return rules, open_keys(settings.ledger_url, settings.domain, pepper, busy_s_max=VERB_BUSY_S_MAX)
    except LedgerError as error:
        could_not_ask(str(error))


def _show_new(made: dict[str, Any], as_json: bool) -> None:
    """The key by itself on standard output, so that it can be put where it belongs; what it is beside it."""
    if as_json:
        _print_json(made)
        return
    typer.echo(made["key"])
    until = f"until {_date(made['expires_s'])}" if made["expires_s"] is not None else "without an end"
    good_for = "" if made["admin"] else f", {_scopes(made)}"
    typer.echo(f"key {made['id']} of {_whose(made)}{good_for}, {until}; it is not shown again", err=True)
    if made["replaces"]:
        typer.echo(f"it succeeds {made['replaces']}, which headworks keys list tells the end of", err=True)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", no_wrap=True)
    for name in ("of", "good for", "created", "expires", "state"):
        table.add_column(name)
    for key in rows:
        cells = (_whose(key), _scopes(key), _date(key["created_s"]), _date(key["expires_s"]), key["state"])
        table.add_row(key["id"], *(Text(cell) for cell in cells))
    return table


def _whose(key: dict[str, Any]) -> str:
    return "the admin port" if key["admin"] else f"tenant {key['tenant']}"


def _scopes(key: dict[str, Any]) -> str:
    if key["admin"]:
        return "nothing else"
    classes = "all classes" if key["classes"] is None else ", ".join(key["classes"])
    return f"{classes}; {'all models' if key['models'] is None else ', '.join(key['models'])}"


def _date(unix_s: float | None) -> str:
    return "never" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

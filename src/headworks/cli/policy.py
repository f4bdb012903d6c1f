"""`headworks policy`: which policy a running gateway decides by, and reading its file again."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, admin_port, could_not_ask

app = typer.Typer(no_args_is_help=True)


@app.command()
def show(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """The version in force, and whether it is enforced. It stands in every decision.

    Exit: 0 it was told, 2 the gateway could not be asked.
    """
    seen = admin_port(admin, config).read("/admin/snapshot", "policy_version", "mode")
    if as_json:
        typer.echo(msgspec.json.encode({"policy_version": seen["policy_version"], "mode": seen["mode"]}).decode())
    else:
        typer.echo(f"policy {seen['policy_version']}, mode {seen['mode']}")


@app.command()
def reload(
    reason: Annotated[str, typer.Option("--reason", help="Why; it is printed where the gateway runs.")],
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a gateway read its file again: whole, or not at all.

    Exit: 0 it is in force, 1 the file is no use and nothing changed, 2 the gateway could not be asked.
    """
    port = admin_port(admin, config)
    status, body = port.ask("POST", "/admin/reload", {"reason": reason})
    if status == 200 and "policy_version" in body:
        typer.echo(msgspec.json.encode(body).decode() if as_json else f"policy {body['policy_version']} is in force")
        return
    if status != 409 or "problems" not in body:
        could_not_ask(f"{port.url} answered {status}: {body.get('error', {}).get('message', 'in other words')}")
    if as_json:
        typer.echo(msgspec.json.encode(body).decode())
    for problem in () if as_json else body["problems"]:
        typer.echo(f"not reloaded: {problem}", err=True)
    raise typer.Exit(1)

"""`headworks log list|delete`: the files of a decision log, and a tenant out of all of them (F2).

A running gateway is asked over its admin port, and begins another file first. With --log the files themselves are taken, save
those that some gateway is writing. The usage journal is an account, and stays."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, ReasonOption, admin_port, could_not_ask, print_json

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The files of a decision log, and who is in them.")

LogOption = Annotated[Path | None, typer.Option("--log", help="This decision log itself; no gateway needs to run.")]


@app.command("list")
def list_all(log: Annotated[Path, typer.Option("--log", help="The decision log.")], as_json: JsonOption = False) -> None:
    """List its files, the oldest first, and whether a look-up finds its way in them by an index.

    Exit: 0 there are some, 1 there is none, 2 it could not be looked at.
    """
    from headworks.gateway import log_index
    from headworks.gateway.log_files import paths

    _there(log)
    shown: list[dict[str, Any]] = [{"file": path.name, "bytes": path.stat().st_size} for path in paths(log)]
    for one in shown:
        one["indexed_bytes"] = log_index.look_up(log / one["file"], "")[1]
    if as_json:
        print_json(shown)
    else:
        for one in shown:
            typer.echo(f"{one['file']}  {one['bytes']:>13,} bytes, {one['indexed_bytes']:,} of them indexed")
    raise typer.Exit(0 if shown else 1)


@app.command()
def delete(
    tenant: Annotated[str, typer.Argument(help="The tenant whose requests are taken out.")],
    reason: ReasonOption,
    log: LogOption = None,
    admin: AdminOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a tenant's requests out of every file of a decision log.

    Exit: 0 nothing of it is left, 1 a file was being written by a gateway that has to be asked, 2 it could not be done.
    """
    found = _offline(log, tenant) if log is not None else _asked(admin, config, tenant, reason)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['lines']:,} lines of {found['files']:,} files were taken out or changed")
        for name in found["busy"]:
            typer.echo(f"{name} is being written: ask its gateway (--admin URL)", err=True)
    raise typer.Exit(1 if found["busy"] else 0)


def _offline(log: Path, tenant: str) -> dict[str, Any]:
    from headworks.gateway import log_delete

    _there(log)
    return asdict(log_delete.delete(log, tenant))


def _asked(admin: str | None, config: Path | None, tenant: str, reason: str) -> dict[str, Any]:
    port = admin_port(admin, config)
    status, body = port.ask("POST", "/admin/log/delete", {"tenant": tenant, "reason": reason})
    if status != 200 or not isinstance(body, dict) or "busy" not in body:
        could_not_ask(f"{port.url} answered {status}: {body.get('error', {}).get('message', 'in other words')}")
    return body


def _there(log: Path) -> None:
    if not log.is_dir():
        could_not_ask(f"{log} is no directory; a decision log is the directory named by log.decisions.")

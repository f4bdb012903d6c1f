"""`headworks explain ID`: the story of one request, from a running gateway or straight from a decision log (F2, K05).

Told as a person would: what was asked, which check decided and with which numbers, what would have admitted it, what came
after. The words are `gateway/story.py`'s, so a tenant that asks over HTTP reads the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, admin_port, could_not_ask


def explain(
    name: Annotated[str, typer.Argument(metavar="ID", help="A request id, an Idempotency-Key, a decision or an execution.")],
    admin: AdminOption = None,
    config: ConfigOption = None,
    log: Annotated[Path | None, typer.Option("--log", help="Read this decision log; no gateway needs to run.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of one request: what was compared with what, and what would have helped.

    Exit: 0 it is known, 1 nothing is known by that name, 2 the gateway or the log could not be asked.
    """
    if log is not None:
        found = _from_log(log, name)
    else:
        path = f"/admin/explain/{quote(name.replace('/', ' '), safe='')}"
        found = admin_port(admin, config).read(path, "records", "story")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif found["records"]:
        typer.echo("\n".join(found["story"]))
    else:
        typer.echo(f"nothing is known of {name}: it never came here, it is older than the log, or no decision log is kept")
    raise typer.Exit(0 if found["records"] else 1)


def _from_log(directory: Path, name: str) -> dict[str, Any]:
    from headworks.gateway import decisions
    from headworks.gateway.explanations import Explanations

    if not directory.is_dir():
        could_not_ask(f"{directory} is no directory; a decision log is the directory named by log.decisions.")
    return Explanations(partial(decisions.find, directory)).of(name)

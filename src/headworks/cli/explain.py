"""`headworks explain ID`: the story of one request, from any running gateway of its ledger or straight from a log (F2, K05).

Told as a person would: what was asked, which check decided and with which numbers, what would have admitted it, what came
after. The words are `gateway/story.py`'s, so a tenant that asks over HTTP reads the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
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
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="And what this configuration would have said (needs the log: --log, or its own)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of one request: what was compared with what, and what would have helped.

    Exit: 0 it is known, 1 nothing is known by that name, or its moment could not be made again for --policy, 2 the gateway
    or the log could not be asked.
    """
    if policy is not None:
        found = _otherwise(policy, log, name)
    elif log is not None:
        found = _from_log(log, name)
    else:
        path = f"/admin/explain/{quote(name.replace('/', ' '), safe='')}"
        found = admin_port(admin, config).read(path, "records", "story")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif found["records"]:
        typer.echo("\n".join([*found["story"], *(line for one in found.get("otherwise", ()) for line in _said(one))]))
    else:
        typer.echo(f"nothing is known of {name}: it never came here, it is older than the log, or no decision log is kept")
    if not as_json:
        for gateway, why in found.get("others", {}).get("missing", {}).items():
            typer.echo(f"what {gateway} knows is missing: it {why}", err=True)
    raise typer.Exit(0 if found["records"] and all(one["holds"] for one in found.get("otherwise", ())) else 1)


def _otherwise(file: Path, log: Path | None, name: str) -> dict[str, Any]:
    """With what another policy would have said to each of its requests."""
    from headworks.cli.plan import policy_of
    from headworks.gateway.story import story
    from headworks.tools.decision_log import LogError
    from headworks.tools.otherwise import otherwise

    policy, directory = policy_of(file)
    directory = log or directory
    if directory is None:
        could_not_ask(f"{file} keeps no decision log (log.decisions): name one with --log.")
    found = _from_log(directory, name)
    try:
        others = otherwise(directory, found["records"], policy)
    except LogError as error:
        could_not_ask(f"{directory}: {error}")
    told = [(one, [] if one.line is None else story([one.line])[1:]) for one in others]  # what was asked is told already
    return {**found, "otherwise": [{**asdict(one), "story": lines} for one, lines in told]}


def _said(one: dict[str, Any]) -> list[str]:
    """Under the other policy, and whether that can be relied on."""
    lines = one["story"] or ["it would not have been let in: that has no such tenant, or serves no such model."]
    said = [f"Under policy {one['policy_version']}, with {one['id']} in the same state of things:", *lines]
    if not one["holds"]:
        said.append(
            f"That cannot be relied on: by its own policy it is decided as {one['again'] or 'unknown'} once more, "
            f"and was {one['logged']}."
        )
    return said


def _from_log(directory: Path, name: str) -> dict[str, Any]:
    from headworks.gateway import decisions
    from headworks.gateway.explanations import Explanations

    if not directory.is_dir():
        could_not_ask(f"{directory} is no directory; a decision log is the directory named by log.decisions.")
    return asyncio.run(Explanations(partial(decisions.find, directory)).of(name))

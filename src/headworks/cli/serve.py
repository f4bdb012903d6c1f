"""`headworks serve`: stand in front of engines."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from headworks.cli import serving
from headworks.cli.configure import configure
from headworks.cli.configured import Asked, Start
from headworks.cli.reloading import policy_number
from headworks.cli.workers import supervise


def serve(
    config: Annotated[Path | None, typer.Option(help="The configuration file.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Instead of a file: the one engine to stand in front of.")] = None,
    engine: Annotated[str, typer.Option(help="What the upstream is: vllm, sglang, llamacpp or openai.")] = "vllm",
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the public port.")] = None,
    admin: Annotated[str | None, typer.Option(help="HOST:PORT of the admin port.")] = None,
    observe: Annotated[bool, typer.Option("--observe", help="Decide and record, refuse nothing.")] = False,
    exposed: Annotated[bool, typer.Option("--exposed", help="Listen off loopback without keys or TLS all the same.")] = False,
    workers: Annotated[int | None, typer.Option(help="Gateway processes on one port, over a ledger that is shared.")] = None,
    worker: Annotated[int | None, typer.Option(hidden=True, help="Which of them this is.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Read the file again whenever it changes, as SIGHUP does.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what runs as JSON lines.")] = False,
    decisions: Annotated[Path | None, typer.Option(help="With --upstream: where to log decisions.")] = None,
) -> None:
    """Stand in front of engines: admit, let wait, or refuse with numbers."""
    if (config is None) == (upstream is None):
        typer.echo("headworks serve needs either --config FILE or --upstream URL", err=True)
        raise typer.Exit(2)
    asked = Asked(
        file=None if config is None else str(config),
        upstream=upstream or "",
        engine=engine,
        decisions=None if decisions is None else str(decisions),
        listen=listen,
        admin=admin,
        workers=workers,
        observe=observe,
        exposed=exposed,
        worker=worker or 1,
    )
    chosen = configure(asked, policy_number(), with_notes=True)
    for note in chosen.notes:
        typer.echo(f"note: {note}", err=True)
    if chosen.settings.workers > 1 and worker is None:
        raise typer.Exit(asyncio.run(supervise(sys.argv[1:], chosen.settings.workers)))
    serving.begin(Start(chosen, asked, "gateway" if worker is None else f"gateway-{worker}", watch, as_json))

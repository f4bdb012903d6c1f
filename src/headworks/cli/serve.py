"""`headworks serve`: stand in front of engines."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headworks import RUNS_AS, __version__
from headworks.cli.key_notes import key_notes
from headworks.cli.reloading import Reloading, policy_number
from headworks.cli.workers import supervise
from headworks.config import build, ledger_url, load, options
from headworks.ledgers.base import LedgerError

if TYPE_CHECKING:
    from headworks.config.schema import Config
    from headworks.core.types import Capacity
    from headworks.gateway.app import App


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
    if upstream is not None:
        chosen = options.for_upstream(upstream, engine)
        chosen = chosen.model_copy(
            update={"log": chosen.log.model_copy(update={"decisions": str(decisions) if decisions else None})}
        )
    else:
        assert config is not None
        loaded = load.load(str(config), os.environ, exposed_ok=exposed)
        chosen = loaded.config_or_raise()
        for warning in key_notes(loaded, os.environ, time.time())[0]:
            typer.echo(f"note: {warning}", err=True)
    as_asked = partial(
        options.with_options,
        environment=os.environ,
        listen=listen,
        admin=admin,
        workers=workers,
        observe=observe,
        exposed_ok=exposed,
    )
    chosen = as_asked(chosen)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if chosen.server.workers > 1 and worker is None:
        raise typer.Exit(asyncio.run(supervise(sys.argv[1:], chosen.server.workers)))
    _run(chosen, as_asked, config, exposed, watch, as_json, worker)


def _run(
    chosen: Config,
    as_asked: Callable[[Config], Config],
    file: Path | None,
    exposed: bool,
    watch: bool,
    as_json: bool,
    worker: int | None,
) -> None:
    from headworks.engines.base import EngineError
    from headworks.gateway.app import App
    from headworks.gateway.counting import TokenizerError
    from headworks.gateway.grpc_port import GrpcError
    from headworks.gateway.issuer_watch import IssuerError
    from headworks.gateway.telemetry import TelemetryError
    from headworks.gateway.tls import TlsError

    try:
        name = "gateway" if worker is None else f"gateway-{worker}"
        app = App(build.policy(chosen, number=policy_number()), build.settings(chosen, os.environ, worker or 1), name=name)
    except (LedgerError, TokenizerError, EngineError, TelemetryError, TlsError, GrpcError, IssuerError) as error:
        _could_not_start(str(error))
    except OSError as error:
        _could_not_start(f"{error.filename}: {error.strerror}")
    reloading = None if file is None else Reloading(file, as_asked, exposed, worker or 1)
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(app, reloading, watch, as_json))
    else:
        uvloop.run(_serve(app, reloading, watch, as_json))


def _could_not_start(why: str) -> NoReturn:
    typer.echo(f"headworks: {why}", err=True)
    raise typer.Exit(2)


async def _serve(app: App, reloading: Reloading | None, watch: bool, as_json: bool) -> None:
    try:
        await app.start()
    except LedgerError as error:
        _could_not_start(str(error))
    except OSError as error:
        await app.stop()
        listen, admin = app.settings.listen, app.settings.admin
        where = f"{listen.host}:{listen.port} or, for the admin port, {admin.host}:{admin.port}"
        _could_not_start(f"cannot listen on {where}: {error.strerror}. --listen and --admin name others.")
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    _banner(app, as_json, await _charged(app))
    beside = [
        asyncio.create_task(_say_capacity(app, as_json)),
        *(asyncio.create_task(one) for one in _reloads(app, reloading, asked, watch)),
    ]
    if app.settings.workers > 1:
        beside.append(asyncio.create_task(_end_with(os.getppid(), stop)))
    await stop.wait()
    for task in beside:
        task.cancel()
    typer.echo(f"draining, at most {app.settings.drain_s:g} s", err=True)
    await app.stop()


def _reloads(app: App, reloading: Reloading | None, asked: asyncio.Event, watch: bool) -> Iterator[Coroutine[Any, Any, None]]:
    """Everything by which the file is read again. Without a file SIGHUP is heard and nothing is done."""
    if reloading is None:
        return
    app.reload_by = partial(reloading.reload, app)
    yield reloading.when_told(asked, app)
    if watch:
        yield reloading.when_changed(app)


async def _end_with(supervisor: int, stop: asyncio.Event) -> None:
    """A supervisor that was killed has told nobody: its ports are wanted by the next one."""
    while os.getppid() == supervisor:  # noqa: ASYNC110 (nobody can set an event for it)
        await asyncio.sleep(1.0)
    stop.set()


async def _charged(app: App) -> int | None:
    """What its ledger holds at the start; None where it is shared and has not been reached yet."""
    try:
        return len((await app.ledger.book()).charged())
    except LedgerError:
        return None


def _banner(app: App, as_json: bool, charged: int | None) -> None:
    """What runs, and what it promises."""
    scheme = "http" if app.settings.tls is None else "https"
    front, admin = (f"{scheme}://{host}:{port}" for host, port in (app.address[:2], app.admin_address[:2]))
    mode = "observe" if app.policy.observe else "enforce"
    upstreams = [(replica.name, replica.engine, replica.url) for replica in app.settings.replicas]
    if as_json:
        _say(
            {
                "listening": f"{front}/v1",
                "admin": admin,
                "dashboard": f"{admin}/dashboard",
                "upstreams": upstreams,
                "version": __version__,
                "runs_as": RUNS_AS,
                "mode": mode,
                "policy": app.policy.version,
                "ledger": ledger_url.without_secret(app.settings.ledger_url),
                "guarantee": app.store.guarantee,
                "charged": charged,
            }
        )
        return
    explained = "observe: decides and records, refuses nothing" if app.policy.observe else mode
    lines = [
        f"headworks {__version__} ({RUNS_AS}) listens on {front}/v1, admin on {admin}",
        f"dashboard {admin}/dashboard",
        *(f"upstream {name}: {engine} at {url}" for name, engine, url in upstreams),
        f"mode {explained}, policy {app.policy.version}",
        f"ledger {ledger_url.without_secret(app.settings.ledger_url)} {app.store.guarantee}",
    ]
    if charged:
        by = "its gateways" if ledger_url.is_shared(app.settings.ledger_url) else "the last life of this gateway"
        lines.append(f"ledger {charged:,} charged by {by}, until their engines have been looked at")
    typer.echo("\n".join(lines))
    sys.stdout.flush()


def _say(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value))
    sys.stdout.flush()


async def _say_capacity(app: App, as_json: bool) -> None:
    """Each engine's limits once it has told them."""
    waiting = {replica.name for replica in app.settings.replicas}
    while waiting:
        await asyncio.sleep(0.2)
        for name in sorted(waiting):
            capacity = app.models.capacity(name)
            if capacity is not None:
                waiting.discard(name)
                _show_capacity(capacity, as_json)


def _show_capacity(capacity: Capacity, as_json: bool) -> None:
    if as_json:
        _say({"ready": asdict(capacity)})
        return
    held = f"{capacity.kv_tokens:,} tokens of memory" if capacity.kv_tokens else "memory unknown"
    typer.echo(
        f"ready {capacity.replica}: {capacity.engine} {capacity.version}, {', '.join(capacity.models)}, "
        f"context {capacity.context_tokens:,}, {held}, can prove a stop by {', '.join(capacity.evidence)}"
    )
    for note in capacity.notes:
        typer.echo(f"note: {capacity.replica}: {note}", err=True)
    sys.stdout.flush()

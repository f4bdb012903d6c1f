"""A gateway's process from where its configuration has been read.

Whoever reads the command line and the configuration has loaded what takes as much memory as a third of a gateway, and is never
asked again. So it hands over what it read and goes on as a program that has loaded nothing else: the same process, by another
`exec` (docs/decisions/0067-the-edge-once-more.md).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headworks import RUNS_AS, __version__
from headworks.cli.configured import Start
from headworks.cli.reloading import Reloading
from headworks.config import ledger_url
from headworks.ledgers.base import LedgerError

if TYPE_CHECKING:
    from headworks.core.types import Capacity
    from headworks.gateway.app import App


def begin(start: Start) -> None:
    """Serve as a program of its own. Where there is no memory to hand things over in, as this one."""
    if not hasattr(os, "memfd_create"):
        serve(start)
        return
    handed = os.memfd_create("headworks", 0)  # it holds secrets, and is in no directory
    with open(handed, "wb", closefd=False) as memory:
        pickle.dump(start, memory)
    os.lseek(handed, 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    program = [sys.executable, "-P", "-m", "headworks.cli.serving"]  # -P: nothing is imported from where it is started
    os.execv(sys.executable, [*program, str(handed), *sys.argv[1:]])  # noqa: S606 (ours)


def serve(start: Start) -> None:
    """Until a signal ends it."""
    from headworks.engines.base import EngineError
    from headworks.gateway.app import App
    from headworks.gateway.counting import TokenizerError
    from headworks.gateway.grpc_port import GrpcError
    from headworks.gateway.issuer_watch import IssuerError
    from headworks.gateway.telemetry import TelemetryError
    from headworks.gateway.tls import TlsError

    asked, watch, as_json = start.asked, start.watch, start.as_json
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        app = App(start.configured.policy, start.configured.settings, name=start.name)
    except (LedgerError, TokenizerError, EngineError, TelemetryError, TlsError, GrpcError, IssuerError) as error:
        _could_not_start(str(error))
    except OSError as error:
        _could_not_start(f"{error.filename}: {error.strerror}")
    reloading = None if asked.file is None else Reloading(Path(asked.file), asked)
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(app, reloading, watch, as_json))
    else:
        uvloop.run(_serve(app, reloading, watch, as_json))


def _could_not_start(why: str) -> NoReturn:
    print(f"headworks: {why}", file=sys.stderr)
    raise SystemExit(2)


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
    print(f"draining, at most {app.settings.drain_s:g} s", file=sys.stderr)
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
    print("\n".join(lines))
    sys.stdout.flush()


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value))
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
    print(
        f"ready {capacity.replica}: {capacity.engine} {capacity.version}, {', '.join(capacity.models)}, "
        f"context {capacity.context_tokens:,}, {held}, can prove a stop by {', '.join(capacity.evidence)}"
    )
    for note in capacity.notes:
        print(f"note: {capacity.replica}: {note}", file=sys.stderr)
    sys.stdout.flush()


def main() -> int:
    """What `begin` goes on with. The exit status, as of any verb (`main.py`)."""
    with open(int(sys.argv[1]), "rb") as handed:
        start: Start = pickle.load(handed)  # noqa: S301 (of this very process, a moment ago)
    try:
        serve(start)
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

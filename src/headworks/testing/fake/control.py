"""`/fake/…`: how a test outside the process breaks the fake engine. In-process tests call the same methods directly.

All are `POST` with arguments in the query, but for `GET /fake/state`:

    /fake/hang  /fake/resume  /fake/slow?factor=3  /fake/restart?down_s=0.5  /fake/die  /fake/vanish  /fake/kill-core
    /fake/drain  /fake/fault?kind=error|break|garbage&after_tokens=2&times=1  /fake/busy?times=3&inside=1&retry_after=5
    /fake/metrics?drop=NAME  /fake/metrics?rename=OLD::NEW  /fake/heal
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from headworks.testing.fake.http import HttpConnection, HttpRequest

if TYPE_CHECKING:
    from headworks.testing.fake_engine import FakeEngine

Arguments = dict[str, str]
Action = Callable[["FakeEngine", Arguments], None]


def control(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    """Answer first: what follows may end every connection."""
    if request.path == "/fake/state":
        connection.respond(200, msgspec.json.encode(state(engine)))
        return
    action = ACTIONS.get(request.path)
    if action is None:
        connection.respond(404, b'{"detail":"Not Found"}')
        return
    arguments = {name: values[-1] for name, values in parse_qs(request.target.partition("?")[2]).items()}
    connection.respond(200, b"{}", "application/json", ("connection", "close"))
    asyncio.get_running_loop().call_soon(action, engine, arguments)


def state(engine: FakeEngine) -> dict[str, object]:
    """What an outside test may want to look at, the truth beside the gauges."""
    return {
        "gauges": asdict(engine.gauges()),
        "held": {request: held._asdict() for request, held in engine.held().items()},
        "requests": engine.requests,
        "started_s": engine.counters.started_s,
    }


def _metrics(engine: FakeEngine, arguments: Arguments) -> None:
    if "drop" in arguments:
        engine.faults.dropped_series.add(arguments["drop"])
    if "rename" in arguments:
        old, _, new = arguments["rename"].rpartition("::")
        engine.faults.renamed_series[old] = new


def _fault(engine: FakeEngine, arguments: Arguments) -> None:
    engine.fault(arguments["kind"], int(arguments.get("after_tokens", "1")), int(arguments.get("times", "1")))


def _busy(engine: FakeEngine, arguments: Arguments) -> None:
    engine.faults.busy_times = int(arguments.get("times", "1"))
    engine.faults.busy_inside = arguments.get("inside") == "1"
    engine.faults.busy_retry_after = arguments.get("retry_after", "")


ACTIONS: dict[str, Action] = {
    "/fake/hang": lambda engine, _: engine.hang(),
    "/fake/resume": lambda engine, _: engine.resume(),
    "/fake/slow": lambda engine, arguments: engine.slow(float(arguments["factor"])),
    "/fake/restart": lambda engine, arguments: engine.restart(float(arguments.get("down_s", "0"))),
    "/fake/die": lambda engine, _: engine.die(),
    "/fake/vanish": lambda engine, _: engine.vanish(),
    "/fake/kill-core": lambda engine, _: engine.kill_core(),
    "/fake/drain": lambda engine, _: engine.drain(),
    "/fake/fault": _fault,
    "/fake/busy": _busy,
    "/fake/metrics": _metrics,
    "/fake/heal": lambda engine, _: engine.heal(),
}

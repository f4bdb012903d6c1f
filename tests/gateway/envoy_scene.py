"""The real Envoy in front of a gateway, from the file that is shipped: only ports and clusters are those of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from app_scene import Scene, scene
from http_port import Answer, Client

from headworks.testing.fake_engine import FakeEngine
from headworks.testing.servers import free_port

NAMED_BY = "HEADWORKS_ENVOY"
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/envoy/envoy.yaml"
READY_S = 20.0
Change = Callable[[dict[str, Any]], None]
"""Of what stands in the file, in place: the connection manager's configuration."""


def program() -> str | None:
    """The Envoy of this machine: what is named, what `scripts/tools envoy` has installed, or what stands in the path."""
    installed = ROOT / "build/tools-envoy/bin/envoy"
    return os.environ.get(NAMED_BY) or (str(installed) if installed.exists() else shutil.which("envoy"))


needs_envoy = pytest.mark.skipif(program() is None, reason=f"no Envoy: scripts/tools envoy installs one, {NAMED_BY} names one")


class Envoy:
    """One process: where it listens."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, payload: bytes) -> Answer:
        client = await self.connect()
        client.send(payload)
        try:
            return await client.answer()
        finally:
            client.close()


def config(listen: int, grpc: int, changes: Change | None = None) -> dict[str, Any]:
    """The shipped file with these ports."""
    given: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    static = given["static_resources"]
    static["listeners"][0]["address"]["socket_address"]["port_value"] = listen
    (endpoints,) = static["clusters"][0]["load_assignment"]["endpoints"]
    endpoints["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] = grpc
    manager = static["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    if changes is not None:
        changes(manager)
    return given


@contextlib.asynccontextmanager
async def envoy(grpc: int, changes: Change | None = None) -> AsyncIterator[Envoy]:
    found = program()
    assert found is not None
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        child = started(found, Path(directory), config(port, grpc, changes))
        try:
            for _ in range(int(READY_S / 0.05)):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert child.poll() is None, "Envoy ended: look into what it was given"
                await asyncio.sleep(0.05)
            yield Envoy(port)
        finally:
            child.kill()
            child.wait(READY_S)


def started(found: str, directory: Path, given: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A process with this configuration. What it says stands where the test's own errors do."""
    file = directory / "envoy.json"
    file.write_text(json.dumps(given))
    return subprocess.Popen([found, "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"])


@contextlib.asynccontextmanager
async def behind_envoy(*engines: FakeEngine, **sections: Any) -> AsyncIterator[tuple[Scene, Envoy]]:
    """A gateway that Envoy asks, in front of fake engines."""
    server = {"grpc": "127.0.0.1:0", **sections.pop("server", {})}
    async with scene(*engines, server=server, **sections) as s:
        assert s.app.grpc is not None
        async with envoy(s.app.grpc.number) as e:
            yield s, e

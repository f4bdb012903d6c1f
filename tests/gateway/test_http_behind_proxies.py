"""Every raw payload once more, through nginx and HAProxy as Debian has them: nobody counts another number of requests (H3).

What a proxy takes for one request and the port for two, or one that only the port sees, is how requests are smuggled past
whatever the proxy checks. In front, the proxy's own log says how many requests of a connection it passed on; behind, the port
counts what it read. The payloads go through several lanes side by side, each with a door and a port of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from http_port import Port, error_body, port, post, run, until
from test_http_payloads import REFUSED, TAKEN

LANES = 16
PATH = "/usr/sbin:/usr/bin:/usr/local/sbin"
PAYLOADS = {**TAKEN, **{name: payload for name, (_, payload) in REFUSED.items()}}
NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{ worker_connections 512; }}
http {{
  log_format front '$server_port $remote_port $upstream_addr'; access_log syslog:server=127.0.0.1:{log},nohostname front;
  client_header_timeout 300ms; client_body_timeout 300ms; keepalive_timeout 300ms; proxy_next_upstream off;
  {paths}
  {lanes}
}}
"""
NGINX_LANE = """upstream port{n} {{ server 127.0.0.1:{behind}; keepalive 8; }}
  server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://port{n}; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Host $host; proxy_request_buffering off; }} }}
"""
HAPROXY = """global
  log 127.0.0.1:{log} local0
  nbthread 1
defaults
  mode http
  log global
  log-format "%fp %cp %s"
  retries 0
  http-reuse always
  timeout connect 1s
  timeout client 400ms
  timeout http-request 400ms
  timeout server 2s
{lanes}
"""
HAPROXY_LANE = """frontend front{n}
  bind 127.0.0.1:{front}
  default_backend back{n}
backend back{n}
  server port 127.0.0.1:{behind}
"""
LOGGED = re.compile(rb": (\d+) (\d+) (\S.*)")


@dataclass
class Log(asyncio.DatagramProtocol):
    """How many requests were passed on, by the proxy's port and the client's, as the proxy says."""

    passed: Counter[tuple[int, int]] = field(default_factory=Counter)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        found = LOGGED.search(data)
        assert found, data
        is_passed = found[3].strip() not in (b"-", b"<NOSRV>")
        self.passed[int(found[1]), int(found[2])] += is_passed and 1 + found[3].count(b",")


@dataclass
class Lane:
    """A door of the proxy, and the port that is behind it alone."""

    port: Port
    front: int
    clients: dict[str, int] = field(default_factory=dict)
    """The client's port of each payload."""
    seen: dict[str, int] = field(default_factory=dict)
    """How many requests had come when its connection ended."""
    nameless: int = 0
    """Heads that could not be read; `http_port.error_body` is asked without a path then."""

    @property
    def behind(self) -> int:
        return self.port.server.counters.requests + self.nameless

    def error_body(self, status: int, code: str, message: str, path: str) -> Any:
        self.nameless += not path
        return error_body(status, code, message, path)

    async def send(self, name: str, payload: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.front)
        self.clients[name] = writer.get_extra_info("sockname")[1]
        with contextlib.suppress(ConnectionError, TimeoutError):
            writer.write(payload)
            async with asyncio.timeout(1.0):
                await reader.read(65_536)
            async with asyncio.timeout(0.03):
                while await reader.read(65_536):
                    pass
        writer.close()
        self.seen[name] = self.behind


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def command(kind: str, folder: Path, log: int, lanes: list[Lane]) -> list[str]:
    """The proxy's, with its file written."""
    whole, part = (NGINX, NGINX_LANE) if kind == "nginx" else (HAPROXY, HAPROXY_LANE)
    parts = [part.format(n=n, front=lane.front, behind=lane.port.address[1]) for n, lane in enumerate(lanes)]
    paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / f"{kind}.conf"
    file.write_text(
        whole.format(folder=folder, log=log, paths=paths, lanes="  ".join(parts) if kind == "nginx" else "".join(parts))
    )
    more = ["-c", str(file), "-e", f"{folder}/error.log"] if kind == "nginx" else ["-f", str(file)]
    return [str(shutil.which(kind, path=PATH)), *more]


async def answers(front: int) -> bool:
    with contextlib.suppress(OSError):
        (await asyncio.open_connection("127.0.0.1", front))[1].close()
        return True
    return False


@contextlib.asynccontextmanager
async def proxied(kind: str, folder: Path) -> AsyncIterator[tuple[list[Lane], Log]]:
    async with contextlib.AsyncExitStack() as stack:
        lanes = []
        for _ in range(LANES):
            lane = Lane(None, free_port())  # type: ignore[arg-type]
            lane.port = await stack.enter_async_context(port(error_body=lane.error_body, body_bytes_max=20_000))
            lanes.append(lane)
        log = Log()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: log, local_addr=("127.0.0.1", 0))
        stack.callback(transport.close)
        child = subprocess.Popen(  # noqa: ASYNC220
            command(kind, folder, transport.get_extra_info("sockname")[1], lanes), stderr=subprocess.DEVNULL
        )
        stack.callback(child.wait, 10)
        stack.callback(child.terminate)
        for _ in range(500):
            if all([await answers(lane.front) for lane in lanes]):
                break
            await asyncio.sleep(0.01)
        yield lanes, log


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_H3_no_payload_is_another_number_of_requests_behind_a_proxy(kind: str, tmp_path: Path) -> None:
    if shutil.which(kind, path=PATH) is None:
        pytest.skip(f"no {kind} here")

    async def steps() -> None:
        async with proxied(kind, tmp_path) as (lanes, log):

            async def through(lane: Lane, names: list[str]) -> None:
                for name in names:
                    await lane.send(name, PAYLOADS[name])
                await lane.send("a good one last", post())

            names = list(PAYLOADS)
            await asyncio.gather(*(through(lane, names[number::LANES]) for number, lane in enumerate(lanes)))
            counted = [lane for lane in lanes if lane.behind]
            assert counted == lanes, "every lane has passed something on"
            with contextlib.suppress(AssertionError):
                await until(lambda: all(front(lane, log) == lane.behind for lane in lanes))
            assert [differences(lane, log) for lane in lanes] == [{}] * LANES
            assert sum(lane.behind for lane in lanes) > len(TAKEN), "most good ones have come through"
            assert all(lane.port.faults == [] for lane in lanes)

    run("uvloop", steps(), within_s=60.0)


def front(lane: Lane, log: Log) -> int:
    return sum(log.passed[lane.front, client] for client in set(lane.clients.values()))


def differences(lane: Lane, log: Log) -> dict[str, tuple[int, int]]:
    """Where the proxy passed on another number than came; empty when the sums agree."""
    if front(lane, log) == lane.behind:
        return {}
    before = 0
    found: dict[str, tuple[int, int]] = {"all": (front(lane, log), lane.behind)}
    for name, seen in lane.seen.items():
        if (passed := log.passed[lane.front, lane.clients[name]]) != seen - before:
            found[name] = (passed, seen - before)
        before = seen
    return found

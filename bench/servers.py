"""Servers a bench starts: each in its own process group, known to answer before it is used, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx


@dataclass(slots=True)
class Server:
    """A server that answers."""

    url: str
    pid: int


@contextlib.contextmanager
def process(command: list[str], ready: str, start_s_max: float, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server in its own process group, answering; ended with its children when done."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(environment or {})}
        )
        try:
            wait_ready(child, ready, start_s_max)
            yield Server(ready.rsplit("/", 1)[0], child.pid)
        except NotReady as error:
            log.seek(0)
            raise SystemExit(f"{shlex.join(command)}: {error}\n{log.read()[-3000:].decode(errors='replace')}") from error
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, sign)
                    child.wait(15)


class NotReady(Exception):
    """The server ended, or did not answer in time."""


def wait_ready(child: subprocess.Popen[bytes], url: str, start_s_max: float) -> None:
    until_s = time.monotonic() + start_s_max
    while time.monotonic() < until_s:
        if child.poll() is not None:
            raise NotReady(f"ended with {child.returncode}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        time.sleep(0.2)
    raise NotReady(f"not ready within {start_s_max:g} s")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def engine(command: str, *flags: str, start_s_max: float = 240.0) -> contextlib.AbstractContextManager[Server]:
    """An engine by the command that starts it, `{port}` replaced, further flags appended."""
    port = free_port()
    words = [*shlex.split(command.replace("{port}", str(port))), *flags]
    return process(words, f"http://127.0.0.1:{port}/health", start_s_max)


@contextlib.contextmanager
def gateway(config: str, engine_url: str, keys: dict[str, str], start_s_max: float = 20.0) -> Iterator[str]:
    """`headworks serve` with this configuration, its `{engine}`, `{port}`, `{admin}` and `{folder}` set. Yields its URL."""
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        values = {"{engine}": engine_url, "{port}": str(port), "{admin}": str(admin), "{folder}": folder}
        for name, value in values.items():
            config = config.replace(name, value)
        path = Path(folder) / "headworks.yaml"
        path.write_text(config)
        command = [str(Path(sys.executable).with_name("headworks")), "serve", "--config", str(path)]
        with process(command, f"http://127.0.0.1:{admin}/readyz", start_s_max, keys):
            yield f"http://127.0.0.1:{port}"

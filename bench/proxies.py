"""Every proxy that the benches compare, and how it is started: one core, one process or one worker, in front of an engine.

nginx and HAProxy are the system's; the others are wheels of the versions that stand in `peers/*.txt`, each in an environment
of its own under `.build/peers/`, made when it is first asked for (a minute or two each, half a gigabyte in all). Their settings
stand in `peers/` and are those under which they were fastest here: no access log, idle connections to the engine kept, no
buffering of answers, no limit that the load would meet.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from generator import BENCH, BUILD, PROXY_CORE, START_S_MAX
from headworks import IS_COMPILED, compiled
from servers import Server, free_port, process

PEERS = BENCH / "peers"
HEADWORKS = (PEERS / "headworks.yaml").read_text()
KEY, KEY_OTHER, KEY_SPENT = "BENCH_KEY_ACME", "BENCH_KEY_OTHER", "BENCH_KEY_SPENT"
"""The keys of the three tenants. The last is over its rate from its second request on."""

Started = contextlib.AbstractContextManager[Server]
Starter = Callable[[Path, int, dict[str, str]], Started]


class Missing(Exception):
    """A proxy that this machine does not have: the text says how to come by it."""


@dataclass(slots=True)
class Peer:
    """Something a user would put in headworks' place."""

    start: Starter
    streams: int = 500
    """How many it can carry at once, with a chunk each 20 ms."""
    held: int = 1000
    """Streams held open to see what each takes; 0: they would not even begin in the time of a run."""


def new_keys() -> dict[str, str]:
    return {name: f"sk-{secrets.token_hex(16)}" for name in (KEY, KEY_OTHER, KEY_SPENT)}


def environment(name: str) -> Path:
    """The folder of programs of a peer's own environment, made if it is not there or not of these versions."""
    folder, wanted = BUILD / "peers" / name, PEERS / f"{name}.txt"
    marker = folder / "installed.txt"
    if not marker.exists() or marker.read_text() != wanted.read_text():
        print(f"installing {name}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([str(folder / "bin" / "pip"), "install", *quiet, "-r", str(wanted)], check=True, stdout=sys.stderr)
        marker.write_text(wanted.read_text())
    return folder / "bin"


def installed(program: str, package: str) -> str:
    """Where a program of the system is."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{program} is not installed (Debian: apt-get install {package})")
    return found


def filled(text: str, path: Path, **values: object) -> Path:
    """A configuration with its places filled, in a file."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    path.write_text(text)
    return path


def settings(name: str, folder: Path, **values: object) -> str:
    return str(filled((PEERS / name).read_text(), folder / name, folder=folder, **values))


@contextlib.contextmanager
def pinned(command: list[str], port: int, path: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A proxy on its core that listens on this port, ready once this path answers."""
    ready = f"http://127.0.0.1:{port}{path}"
    with process(["taskset", "-c", PROXY_CORE, *command], ready, START_S_MAX, environment) as server:
        yield Server(f"http://127.0.0.1:{port}", server.pid)


def nginx(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = installed("nginx", "nginx-light"), free_port()
    path = settings("nginx.conf", folder, engine=engine_port, port=port)
    return pinned([program, "-c", path, "-p", str(folder), "-e", f"{folder}/error.log"], port, "/health")


def haproxy(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = installed("haproxy", "haproxy"), free_port()
    return pinned([program, "-db", "-f", settings("haproxy.cfg", folder, engine=engine_port, port=port)], port, "/health")


def envoy(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = environment("envoy") / "envoy", free_port()
    path = settings("envoy.yaml", folder, engine=engine_port, port=port)
    quiet = ["--log-level", "error", "--disable-hot-restart"]
    return pinned([str(program), "-c", path, "--concurrency", "1", *quiet], port, "/health")


def vllm_router(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = environment("vllm_router") / "vllm-router", free_port()
    command = [str(program), *routing(engine_port, port), "--log-level", "error", "--max-concurrent-requests", "20000"]
    return pinned(command, port, "/health", {"TOKIO_WORKER_THREADS": "1"})


def sglang_router(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = environment("sglang_router") / "sglang-router", free_port()
    command = [str(program), "launch", *routing(engine_port, port), "--log-level", "warn"]
    return pinned(command, port, "/health", {"TOKIO_WORKER_THREADS": "1"})


def routing(engine_port: int, port: int) -> list[str]:
    """What both routers call alike. Each would also open a port for metrics, always the same one."""
    words = {"--worker-urls": f"http://127.0.0.1:{engine_port}", "--policy": "round_robin", "--host": "127.0.0.1"}
    words |= {"--port": str(port), "--prometheus-port": str(free_port())}
    return [word for pair in words.items() for word in pair]


def litellm(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = environment("litellm") / "litellm", free_port()
    path = settings("litellm.yaml", folder, engine=engine_port)
    command = [str(program), "--config", path, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return pinned(command, port, "/health/liveliness", keys | {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"})


def fastapi_httpx(folder: Path, engine_port: int, keys: dict[str, str]) -> Started:
    program, port = environment("fastapi_httpx") / "uvicorn", free_port()
    command = [str(program), "fastapi_httpx:app", "--app-dir", str(PEERS), "--port", str(port), "--no-access-log"]
    return pinned([*command, "--log-level", "warning"], port, "/health", {"ENGINE": f"http://127.0.0.1:{engine_port}"})


@contextlib.contextmanager
def headworks(folder: Path, engine_port: int, keys: dict[str, str], text: str = HEADWORKS) -> Iterator[Server]:
    """With this configuration, its `{engine}`, `{port}`, `{admin}` and `{folder}` filled."""
    port, admin = free_port(), free_port()
    config = filled(text, folder / "headworks.yaml", folder=folder, engine=engine_port, port=port, admin=admin)
    command = [str(Path(sys.executable).with_name("headworks")), "serve", "--config", str(config)]
    with pinned(command, admin, "/readyz", keys) as server:
        yield Server(f"http://127.0.0.1:{port}", server.pid)


def compile_first() -> None:
    """And begin anew: this process has loaded what there was before."""
    subprocess.run([str(BENCH.parent / "scripts" / "compile")], check=True)
    if not IS_COMPILED and not os.environ.get(compiled.PURE):
        os.execv(sys.executable, [sys.executable, *sys.argv])


ALL: dict[str, Peer] = {
    "headworks": Peer(headworks),
    "nginx": Peer(nginx),
    "haproxy": Peer(haproxy),
    "envoy": Peer(envoy),
    "vllm_router": Peer(vllm_router),
    "sglang_router": Peer(sglang_router),
    "fastapi_httpx": Peer(fastapi_httpx, held=200),
    "litellm": Peer(litellm, streams=10, held=0),
}
"""In the order in which they take their turns."""

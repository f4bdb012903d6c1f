"""Real processes for drills: an engine and a gateway, each by itself, ended by name and never by pattern."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ENGINE = ("--preset", "vllm_cpu_tiny", "--max-num-seqs", "8", "--max-model-len", "4096")
WAIT_S = 15.0


def until(condition: Callable[[], Any], within_s: float = WAIT_S) -> Any:
    """What the condition says once it says something; a server that is not there yet says nothing."""
    end_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if found := condition():
                return found
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.02)


GIVEN: set[int] = set()


def free_port() -> int:
    """Never the same twice: the one before may not be listened on yet."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
        if port not in GIVEN:
            GIVEN.add(port)
            return port


@dataclass
class Engine:
    child: subprocess.Popen[str]
    url: str
    port: int

    def state(self) -> Any:
        return httpx.get(self.url + "/fake/state", timeout=5).json()

    def inside(self) -> int:
        return len(self.state()["held"])

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(5)


@dataclass
class Gateway:
    child: subprocess.Popen[str]
    url: str
    admin: str

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.admin + path, timeout=5)

    def audit(self) -> Any:
        return self.get("/admin/ledger/audit").json()["differences"]

    def charged(self) -> int:
        return int(self.get("/admin/ledger").json()["charged"])

    def send(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def ended(self, within_s: float = WAIT_S) -> int:
        return self.child.wait(within_s)


@contextlib.contextmanager
def engine(port: int = 0, *flags: str) -> Iterator[Engine]:
    with _process("-m", "headworks.testing.fake_engine", *ENGINE, *flags, "--port", str(port)) as child:
        assert child.stdout is not None
        url = child.stdout.readline().removeprefix("listening on ").strip()
        yield Engine(child, url, int(url.rpartition(":")[2]))


@contextlib.contextmanager
def gateway(*words: str, directory: Path | None = None, **environment: str) -> Iterator[Gateway]:
    """`headworks serve`, ready for work. `directory`: where it is started."""
    with starting(*words, directory=directory, **environment) as child:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        made = Gateway(child, said["listening"].removesuffix("/v1"), said["admin"])
        until(lambda: made.get("/readyz").status_code == 200)
        yield made


@contextlib.contextmanager
def starting(*words: str, directory: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`headworks serve`, whatever it is doing."""
    command = ("-m", "headworks.cli.main", "serve", *words, "--json")
    with _process(*command, directory=directory, **environment) as child:
        yield child


@contextlib.contextmanager
def _process(*words: str, directory: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, *words],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
            child.kill()
        child.wait(5)
        assert child.stdout is not None
        child.stdout.close()


def configuration(directory: Path, engine_url: str, **sections: Any) -> Path:
    """A file for `serve --config`; JSON is YAML."""
    given = {
        "server": {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "drain_s": 10},
        "ledger": {"url": "memory:"},
        "log": {"decisions": None},
        "usage": {"path": str(directory / "usage")},
        "pools": {"llama": {"replicas": [{"url": engine_url, "engine": "vllm"}]}},
        **sections,
    }
    file = directory / "headworks.yaml"
    file.write_text(json.dumps(given))
    return file


BODY = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "stream": True}


@contextlib.contextmanager
def stream(url: str, tokens: int, **headers: str) -> Iterator[Iterator[str]]:
    """One streamed chat; the lines of its events."""
    with (
        httpx.Client(timeout=30, trust_env=False) as client,
        client.stream("POST", url + "/v1/chat/completions", json={**BODY, "max_tokens": tokens}, headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield (line for line in answer.iter_lines() if line)


def ask(url: str, tokens: int = 4, **headers: str) -> httpx.Response:
    """One chat in one piece."""
    return httpx.post(
        url + "/v1/chat/completions", json={**BODY, "stream": False, "max_tokens": tokens}, headers=headers, timeout=30
    )

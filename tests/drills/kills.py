"""kill -9 at random instants, under load, again and again on one ledger file (A9).

    python tests/drills/kills.py --times 50 --seed 1

A gateway and a fake engine, both processes. Clients stream, read on or leave; at a random instant the gateway is killed,
also while it starts. Then three things must hold, and a second witness says one of them:

- what the file holds recovers to a book that adds up, everything charged an orphan, nothing above the pool's limit;
- whatever is *inside the engine* at that moment is charged there (what was sent had been written before);
- every `SETTLE_EVERY` kills, and at the end: a new gateway without load brings the charge to exactly nothing, once the
  engine holds nothing, and its audit finds no difference.

Exit 1 where one does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from processes import BODY, Engine, configuration, engine, gateway, starting, until

from headworks.core.book import Book
from headworks.ledgers.journal import open_journal

CLIENTS = 6
LEASE_S = 1.0
SETTLE_EVERY = 10
STARTING_RATIO = 0.3
"""Kills that come while the gateway starts, at whatever it is doing then."""
POOL_TOKENS = 6_000
SPEED = "0.3"
"""An engine that is slow to let go, so that something is inside when it is asked."""


@dataclass
class Drill:
    """What was seen."""

    kills: int = 0
    charged: int = 0
    inside: int = 0
    settled: int = 0
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.faults.append(text)


def drill(directory: Path, times: int, seed: int) -> Drill:
    """So many kills, in an order that depends on the seed alone; the instants are those of a real machine."""
    random, seen = Random(seed), Drill()
    with engine(0, "--speed", SPEED) as upstream:
        file = configuration(
            directory,
            upstream.url,
            ledger={"url": f"sqlite:{directory}/ledger.db", "lease_s": LEASE_S},
            pools={"llama": {"active_tokens_max": POOL_TOKENS, "replicas": [{"url": upstream.url, "engine": "vllm"}]}},
        )
        for number in range(1, times + 1):
            if random.random() < STARTING_RATIO:
                inside = kill_starting(file, upstream, random.uniform(0.0, 1.0))
            else:
                inside = kill_loaded(file, upstream, random, random.uniform(0.0, 0.8))
            seen.kills += 1
            look(directory, inside, seen, f"kill {number} of seed {seed}")
            if number % SETTLE_EVERY == 0 or number == times:
                settle(file, upstream, seen, f"after kill {number} of seed {seed}")
    return seen


def kill_starting(file: Path, upstream: Engine, after_s: float) -> set[str]:
    """What is inside the engine when the gateway is no more."""
    with starting("--config", str(file)) as child, witness(upstream) as inside_now:
        time.sleep(after_s)  # the instant itself is what is random here: nothing is waited for
        child.kill()
        inside = inside_now()
        child.wait(5)
    return inside


def kill_loaded(file: Path, upstream: Engine, random: Random, after_s: float) -> set[str]:
    """What is inside the engine when the gateway is no more, and the engine has hardly had time to see it."""
    with gateway("--config", str(file)) as front, load(front.url, random), witness(upstream) as inside_now:
        time.sleep(after_s)
        front.send(signal.SIGKILL)
        inside = inside_now()
        front.ended()
    return inside


@contextlib.contextmanager
def witness(upstream: Engine) -> Iterator[Callable[[], set[str]]]:
    """Asks the engine what is inside, on a connection that is there already: a new one would come too late."""
    with httpx.Client(timeout=10, trust_env=False) as http:
        http.get(upstream.url + "/fake/state")
        yield lambda: set(http.get(upstream.url + "/fake/state").json()["held"])


@contextlib.contextmanager
def load(url: str, random: Random) -> Iterator[None]:
    """Clients that stream, read or leave, until the end of the block or of the server."""
    over = threading.Event()
    threads = [threading.Thread(target=client, args=(url, Random(random.random()), over)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def client(url: str, random: Random, over: threading.Event) -> None:
    with contextlib.suppress(httpx.HTTPError), httpx.Client(timeout=10, trust_env=False) as http:
        while not over.is_set():
            body = {**BODY, "max_tokens": random.choice((4, 40, 400))}
            leaves_after = random.choice((1, 10, 1_000))
            with http.stream("POST", url + "/v1/chat/completions", json=body) as answer:
                for count, _ in enumerate(answer.iter_lines()):
                    if over.is_set() or count >= leaves_after:
                        break


def look(directory: Path, inside: set[str], seen: Drill, where: str) -> None:
    """What a start would find now, beside what the engine held."""
    path = directory / "ledger.db"
    if not path.exists():  # killed before the file was there
        seen.expect(not inside, f"{where}: {inside} inside, and no ledger")
        return
    book = recovered_copy(path)
    charged = {record.execution: record for record in book.charged()}
    seen.charged += len(charged)
    seen.inside += len(inside)
    seen.expect(book.check() == [], f"{where}: {book.check()}")
    seen.expect({record.state for record in charged.values()} <= {"ORPHANED"}, f"{where}: not orphaned: {charged}")
    seen.expect(inside <= charged.keys(), f"{where}: inside the engine and not charged: {inside - charged.keys()}")
    held = book.held("pool:llama", "tokens")
    seen.expect(held <= POOL_TOKENS, f"{where}: {held} held of {POOL_TOKENS}")


def recovered_copy(path: Path) -> Book:
    """The book of a start on a copy of the file: the file itself is left to the next gateway."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / path.name
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        store = open_journal(str(copy), int(LEASE_S * 1000), 60_000, lambda: 0)
        store.close()
        return store.book


def settle(file: Path, upstream: Engine, seen: Drill, where: str) -> None:
    """A start without load: charged until the engine shows that it has stopped, then exactly nothing."""
    with gateway("--config", str(file)) as front:
        until(lambda: front.charged() == 0, 30.0)
        seen.expect(upstream.inside() == 0, f"{where}: released while it was inside the engine: {upstream.state()['held']}")
        seen.expect(front.audit() == [], f"{where}: {front.audit()}")
        tokens = front.get("/admin/ledger").json()["tokens"]
        seen.expect(tokens == {"llama": 0}, f"{where}: {tokens}")
        front.send(signal.SIGTERM)
        seen.expect(front.ended() == 0, f"{where}: it did not end well")
    seen.settled += 1


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 at random instants under load")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        seen = drill(Path(directory), options.times, options.seed)
    print(f"{seen.kills} kills, {seen.charged} executions charged and {seen.inside} inside the engine at them, "
          f"{seen.settled} times brought to exactly nothing")  # fmt: skip
    for fault in seen.faults:
        print(fault)
    return 1 if seen.faults else 0


if __name__ == "__main__":
    sys.exit(main())

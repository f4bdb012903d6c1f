"""The store fails over, comes back empty, comes back older, again and again, amid live requests at three gateways (A11).

    python tests/drills/failovers.py [--rounds 50] [--requests 200] [--kinds promoted empty older]

Rounds take turns: the primary is killed and sentinels promote its replica; a single store is killed and comes back empty; it is
killed and comes back as it was a moment before. Callers go on all the while, more than fit. Watched: that the engine never
holds more than the limit, how long the gateways take to be open again once a store is there, and that in the end nothing is
held, nothing is stuck and every counter is right. Prints JSON; exit 0 if all of it holds, 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from live import asking
from processes import Engine, Gateway, configuration, engine, gateway, until

from headworks.testing import servers

GATEWAYS = 3
LIMIT = 48
"""Requests that may be inside the engine at a time."""
TOKENS = 24
WIDE = ("--max-num-seqs", "256", "--speed", "1")
LEASE_S = 5.0
OPEN_S_MAX = 1.0
"""How long the gateways take to be open again, once there is a store."""
KNOWN_S_MAX = LEASE_S - 1.5
"""Away for longer, who was taken in meanwhile is known to nobody: they wait for a lease."""
LOOK_S = 0.02
BETWEEN_S = 1.0
"""Until the next round, so that work is going on that the last store has seen."""
PROMOTE_EVERY_S = 6.5
"""Sentinels do not fail over again within twice their timeout."""
CALLER_S = 60.0
"""An answer that takes longer is stuck."""
KINDS = ("promoted", "empty", "older")


class Callers:
    """So many callers, each asking again as soon as it has its answer or was refused."""

    def __init__(self, gateways: list[Gateway], count: int) -> None:
        self.ends: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._is_over = False
        self._urls = [gateways[number % len(gateways)].url for number in range(count)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.gather(*(self._call_on(url) for url in self._urls)))

    async def _call_on(self, url: str) -> None:
        while not self._is_over:
            try:
                how = await asyncio.wait_for(self._call(url), CALLER_S)
            except TimeoutError:
                how = "stuck"
            except OSError as error:
                how = type(error).__name__
            self.ends[how] += 1
            if how != "done":
                await asyncio.sleep(0.2)

    async def _call(self, url: str) -> str:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        last = b""
        try:
            writer.write(asking(url, TOKENS))
            status = int((await reader.readline()).split(b" ", 2)[1])
            while status == 200 and (line := await reader.readline()):
                if line.startswith(b"data: "):
                    last = line.strip()
                elif last == b"data: [DONE]":
                    return "done"
            return "broken" if status == 200 else str(status)
        finally:
            writer.close()

    def end(self) -> None:
        """No new one is asked; what runs may end."""
        self._is_over = True
        self._thread.join(2 * CALLER_S)


class Watch(threading.Thread):
    """One page, looked at all the time, over a connection that stays: what costs little does not change what is measured."""

    def __init__(self, url: str, path: str, read: Callable[[int, bytes], Any]) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, Any]] = []
        """When it was asked, and what was read of the answer."""
        self._where = urlsplit(url)
        self._path = path
        self._read = read
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        line = http.client.HTTPConnection(str(self._where.hostname), self._where.port, timeout=10)
        while not self._over.wait(LOOK_S):
            asked_s = time.monotonic()
            line.request("GET", self._path)
            answer = line.getresponse()
            self.seen.append((asked_s, self._read(answer.status, answer.read())))

    def end(self) -> None:
        self._over.set()
        self.join(10)


def opened_s(watch: Watch, lost_s: float) -> float | None:
    """Since when this gateway has been open again after the store was lost then; None while it is not, or has not noticed."""
    seen = [one for one in list(watch.seen) if one[0] >= lost_s]
    closed = [number for number, (_, is_open) in enumerate(seen) if not is_open]
    if not closed or closed[-1] + 1 >= len(seen):
        return None
    return seen[closed[-1] + 1][0]


class Promoted:
    """The primary is killed, its replica promoted; the old one comes back as the replica of that."""

    def __init__(self, trio: servers.Trio) -> None:
        self.url = trio.url
        self._trio = trio
        self._last_s = -PROMOTE_EVERY_S

    def lose(self) -> tuple[float, float]:
        """When it was lost, and when there was one again."""
        time.sleep(max(0.0, self._last_s + PROMOTE_EVERY_S - time.monotonic()))
        old, lost_s = self._trio.primary(), time.monotonic()
        self._trio.fail_over()
        self._last_s = back_s = time.monotonic()
        threading.Thread(target=self._rejoin, args=(old,), daemon=True).start()
        return lost_s, back_s

    def _rejoin(self, old: servers.Server) -> None:
        new = self._trio.primary()
        old.start("--replicaof", "127.0.0.1", str(new.port))

    def settle(self) -> None:
        """There is a replica again that has all of it."""
        self._trio.primary()
        servers.until(lambda: self._trio.primary().field("replication", "connected_slaves") == "1", 30)
        servers.until(lambda: "state=online" in self._trio.primary().field("replication", "slave0"), 30)


class Restarted:
    """The only store is killed, and comes back empty or as it was a moment before."""

    def __init__(self, server: servers.Server, older: bool) -> None:
        self.url = server.url
        self._server = server
        self._older = older

    def lose(self) -> tuple[float, float]:
        """When it was lost, and when there was one again."""
        if self._older:
            self._server.ask("SAVE")
            time.sleep(0.3)
        lost_s = time.monotonic()
        self._server.kill()
        if not self._older:
            (self._server.directory / "dump.rdb").unlink(missing_ok=True)
        self._server.start()
        return lost_s, time.monotonic()

    def settle(self) -> None:
        """It needs nothing."""


Store = Promoted | Restarted


@contextlib.contextmanager
def fleet(place: Path, upstream: Engine, url: str) -> Iterator[list[Gateway]]:
    pools = {"llama": {"replicas": [{"url": upstream.url, "engine": "vllm"}], "active_requests_max": LIMIT}}
    classes = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}}}
    with contextlib.ExitStack() as started:
        made = []
        for number in range(GATEWAYS):
            directory = place / f"gateway-{number}"
            directory.mkdir(parents=True)
            file = configuration(directory, upstream.url, ledger={"url": url, "lease_s": LEASE_S}, pools=pools, classes=classes)
            made.append(started.enter_context(gateway("--config", str(file), directory=directory)))
        yield made


def drill(place: Path, store: Store, rounds: int, requests: int) -> dict[str, Any]:
    """So many rounds of one kind, and what was seen."""
    took_s: list[tuple[float, float]] = []
    with engine(0, *WIDE) as upstream, fleet(place, upstream, store.url) as gateways:
        callers = Callers(gateways, requests)
        engine_watch = Watch(upstream.url, "/fake/state", lambda _, body: len(json.loads(body)["held"]))
        watches = [Watch(one.admin, "/readyz", lambda status, _: status == 200) for one in gateways]
        until(lambda: callers.ends["done"] >= requests // 2, 60)
        for _ in range(rounds):
            time.sleep(BETWEEN_S)
            took_s.append(_round(store, watches))
            before = callers.ends["done"]
            until(lambda before=before: callers.ends["done"] > before, 30)  # type: ignore[misc]
            store.settle()
        callers.end()
        for watch in (engine_watch, *watches):
            watch.end()
        until(lambda: upstream.inside() == 0 and gateways[0].charged() == 0, 30)
        audits = [one.audit() for one in gateways]
    return told(took_s, max(inside for _, inside in engine_watch.seen), callers.ends, audits)


def _round(store: Store, watches: list[Watch]) -> tuple[float, float]:
    """How long there was no store, and how long after that the last gateway was open."""
    lost_s, back_s = store.lose()
    opened: list[float] = until(lambda: _all_opened(watches, lost_s), 60)
    return back_s - lost_s, max(0.0, max(opened) - back_s)


def _all_opened(watches: list[Watch], lost_s: float) -> list[float]:
    found = [opened_s(watch, lost_s) for watch in watches]
    return [] if None in found else [one for one in found if one is not None]


def told(took_s: list[tuple[float, float]], most: int, ends: Counter[str], audits: list[Any]) -> dict[str, Any]:
    """What was seen, and whether it is as it should be."""
    known, unknown = (
        [open_s for away_s, open_s in took_s if (away_s < KNOWN_S_MAX) is is_known] or [0.0] for is_known in (True, False)
    )
    in_time = max(known) < OPEN_S_MAX and max(unknown) < LEASE_S + OPEN_S_MAX
    return {
        "rounds": len(took_s),
        "most_inside": most,
        "limit": LIMIT,
        "away_s": _spread([away_s for away_s, _ in took_s]),
        "open_s": _spread(known),
        "after_a_lease": {"rounds": sum(away_s >= KNOWN_S_MAX for away_s, _ in took_s), "open_s": _spread(unknown)},
        "ends": dict(ends),
        "audits": audits,
        "holds": most <= LIMIT and in_time and not ends["stuck"] + ends["broken"] and not any(audits),
    }


def _spread(values_s: list[float]) -> dict[str, float]:
    return {"median": round(sorted(values_s)[len(values_s) // 2], 2), "most": round(max(values_s), 2)}


def drills(rounds: int, requests: int, say: Callable[[str], None], kinds: Sequence[str] = KINDS) -> dict[str, dict[str, Any]]:
    """All kinds, as many rounds of each."""
    seen: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, kind in enumerate(kinds):
            share = len(range(number, rounds, len(kinds)))
            if not share:
                continue
            with servers.sentinel() if kind == "promoted" else servers.single() as found:
                store = Promoted(found) if isinstance(found, servers.Trio) else Restarted(found, kind == "older")
                seen[kind] = drill(Path(name) / kind, store, share, requests)
                say(json.dumps({kind: seen[kind]}))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description="the store is lost, again and again, amid live requests")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    seen = drills(options.rounds, options.requests, lambda line: print(line, flush=True), options.kinds)
    return 0 if all(one["holds"] for one in seen.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

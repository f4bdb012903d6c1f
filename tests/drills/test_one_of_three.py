"""One of three gateways is killed with its live streams: what the others' clients notice, and when nothing is held any more.

`HEADWORKS_DRILLS=1 pytest -s tests/drills/test_one_of_three.py` is the drill of 200 streams; figures are printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live import Streams, gaps_ms, quantile
from processes import BODY, Engine, Gateway, configuration, engine, gateway, until

from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())

DRILLS = "HEADWORKS_DRILLS" in os.environ
STREAMS, LEASE_S, WINDOW_S = (200, 5.0, 8.0) if DRILLS else (12, 2.0, 1.0)
WIDE = ("--max-num-seqs", "256", "--speed", "0.15")
P99_RATIO_MAX, P99_MORE_MS_MAX = 1.5, 20.0
TOKENS = 1_500
BEGUN_S = 60.0
LOOK_S = 0.1


class Probe(threading.Thread):
    """One short request after the other to one gateway, each with the time it took."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.took: list[tuple[float, float]] = []
        """When each was asked, and its milliseconds."""
        self.wrong: list[str] = []
        self._url = url
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        body = {**BODY, "stream": False, "max_tokens": 1}
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not self._over.wait(0.05):
                asked_s = time.monotonic()
                answer = client.post(self._url + "/v1/chat/completions", json=body)
                if answer.status_code != 200:
                    self.wrong.append(answer.text)
                self.took.append((asked_s, 1000 * (time.monotonic() - asked_s)))

    def end(self) -> None:
        self._over.set()
        self.join(30)


@contextlib.contextmanager
def fleet(place: Path, upstream: Engine, url: str) -> Iterator[list[Gateway]]:
    pools = {"llama": {"replicas": [{"url": upstream.url, "engine": "vllm"}], "active_requests_max": 240}}
    with contextlib.ExitStack() as started:
        made = []
        for number in range(3):
            directory = place / f"gateway-{number}"
            directory.mkdir()
            file = configuration(directory, upstream.url, ledger={"url": url, "lease_s": LEASE_S}, pools=pools)
            made.append(started.enter_context(gateway("--config", str(file), directory=directory)))
        yield made


def test_A7_one_of_three_is_killed_and_the_others_clients_do_not_notice(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.single() as store, fleet(tmp_path, upstream, store.url) as gateways:
        doomed, others = gateways[0], gateways[1:]
        clients = Streams([gateways[number % 3].url for number in range(STREAMS)], TOKENS)
        until(lambda: clients.begun() == STREAMS, BEGUN_S)
        probes = [Probe(one.url) for one in others]
        charged = lambda: int(str(store.ask("HLEN", "headworks:{main}:live")))  # noqa: E731
        time.sleep(WINDOW_S)
        doomed.send(signal.SIGKILL)
        killed_s = time.monotonic()
        theirs = [one for one in clients.streams if one.url != doomed.url]
        freed_s = _freed_s(charged, upstream, len(theirs), len(probes), killed_s)
        until(lambda: time.monotonic() > killed_s + WINDOW_S, 2 * WINDOW_S)
        for probe in probes:
            probe.end()
        figures = _figures(clients, [one for probe in probes for one in probe.took], doomed.url, killed_s)
        print(json.dumps({"streams": STREAMS, "lease_s": LEASE_S, "freed_s": round(freed_s, 2), **figures}))
        assert [one for probe in probes for one in probe.wrong] == []
        assert not [one for one in theirs if one.is_over], "no stream of the others has ended"
        assert charged() == len(theirs)
        assert freed_s <= 2 * LEASE_S + 5.0
        if DRILLS:
            for name, (control_ms, after_ms) in figures.items():
                assert after_ms <= max(P99_RATIO_MAX * control_ms, control_ms + P99_MORE_MS_MAX), name
        clients.leave()
        until(lambda: upstream.inside() == 0 and others[0].charged() == 0, 2 * LEASE_S + 5.0)
        assert [one.audit() for one in others] == [[], []]


def _freed_s(charged: object, upstream: Engine, living: int, probes: int, killed_s: float) -> float:
    """When nothing of the dead gateway was held any more. Until then never less than what its engine holds."""
    assert callable(charged)
    while (held := charged()) > living + probes:
        inside = upstream.inside()
        assert held + probes >= inside, f"{held} are charged and {inside} are inside the engine"
        assert time.monotonic() < killed_s + 4 * LEASE_S + 10.0, f"{held} are still charged"
        time.sleep(LOOK_S)
    return time.monotonic() - killed_s


def _figures(
    clients: Streams, asked: list[tuple[float, float]], doomed: str, killed_s: float
) -> dict[str, tuple[float, float]]:
    """99 of 100, before and after: between two events of a stream, and of a short request from its first byte to its last."""
    theirs = [one for one in clients.streams if one.url != doomed]
    windows = ((killed_s - WINDOW_S, killed_s), (killed_s, killed_s + WINDOW_S))
    gaps = [quantile(gaps_ms(theirs, *window), 0.99) for window in windows]
    took = [quantile(sorted(ms for at_s, ms in asked if first_s <= at_s < last_s), 0.99) for first_s, last_s in windows]
    return {
        "event_gap_p99_ms": (round(gaps[0], 1), round(gaps[1], 1)),
        "request_p99_ms": (round(took[0], 1), round(took[1], 1)),
    }

"""Several gateways, real processes, on one real store: whatever dies, the sum is right and nothing stays held."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import BODY, Engine, Gateway, ask, configuration, engine, free_port, gateway, starting, until

from headworks.testing import servers
from headworks.testing.tcp_fault_proxy import Faults, threaded

pytestmark = [
    pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not()),
    pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="two minutes: HEADWORKS_DRILLS=1 runs them"),
]

LEASE_S = 1.5
STREAMS = 8
"""As many as a gateway lets run at an engine it has not measured yet."""
STARTED_S = 40.0
"""A worker is started again after a pause, on a machine that may be busy."""
WIDE = ("--max-num-seqs", "64", "--speed", "0.4")


@contextlib.contextmanager
def fleet(place: Path, upstream: Engine, count: int, url: str, **ledger: Any) -> Iterator[list[Gateway]]:
    """So many gateways over one ledger, ready for work."""
    with contextlib.ExitStack() as started:
        files = []
        for number in range(count):
            directory = place / f"gateway-{number}"
            directory.mkdir()
            file = configuration(directory, upstream.url, ledger={"url": url, "lease_s": LEASE_S, **ledger})
            files.append((directory, file))
        yield [started.enter_context(gateway("--config", str(file), directory=directory)) for directory, file in files]


class Reader(threading.Thread):
    """A client that streams, reads on, and writes down how it ended."""

    def __init__(self, url: str, tokens: int) -> None:
        super().__init__(daemon=True)
        self.began = threading.Event()
        self.last = ""
        self._url, self._tokens = url, tokens
        self.start()

    def run(self) -> None:
        body = {**BODY, "max_tokens": self._tokens}
        try:
            with (
                httpx.Client(timeout=60, trust_env=False) as client,
                client.stream("POST", self._url + "/v1/chat/completions", json=body) as answer,
            ):
                for line in answer.iter_lines():
                    if line:
                        self.last = line
                        self.began.set()
        except httpx.HTTPError as error:
            self.last = self.last if self.last.startswith('data: {"error"') else type(error).__name__
        self.began.set()

    def ended(self) -> str:
        self.join(60)
        return self.last


def readers(count: int, gateways: list[Gateway], tokens: int = 3_000) -> list[Reader]:
    """Streams that have begun, spread over the gateways."""
    made = [Reader(gateways[number % len(gateways)].url, tokens) for number in range(count)]
    for one in made:
        assert one.began.wait(30)
    return made


def right(gateways: list[Gateway], upstream: Engine, within_s: float = 15.0) -> None:
    """Nothing is held, neither by the ledger nor in the engine, and every counter is the sum of its parts."""
    until(lambda: upstream.inside() == 0 and gateways[0].charged() == 0, within_s)
    assert [one.audit() for one in gateways] == [[] for _ in gateways]


def test_A7_one_of_three_is_killed_with_its_streams_and_the_others_prove_them_stopped(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.single() as store, fleet(tmp_path, upstream, 3, store.url) as gateways:
        doomed, others = gateways[0], gateways[1:]
        clients = readers(STREAMS, [doomed])
        until(lambda: others[0].charged() == STREAMS)
        doomed.send(signal.SIGKILL)
        assert others[0].charged() == STREAMS, "nobody has proved yet that they stopped"
        assert ask(others[0].url).status_code == ask(others[1].url).status_code == 200
        right(others, upstream, 2 * LEASE_S + 5.0)
        assert all(one.ended() != "data: [DONE]" for one in clients)


def test_A7_frozen_for_ten_leases_its_work_is_adopted_and_it_lets_go_when_it_wakes(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.single() as store, fleet(tmp_path, upstream, 2, store.url) as (frozen, other):
        clients = readers(3, [frozen])
        frozen.send(signal.SIGSTOP)
        until(lambda: other.get("/admin/snapshot").json()["orphans_watched"] == 3)
        time.sleep(10 * LEASE_S - 3.0)
        frozen.send(signal.SIGCONT)
        for one in clients:
            assert one.ended() != ""
        right([frozen, other], upstream)
        assert ask(frozen.url).status_code == 200


def test_A11_a_store_that_comes_back_empty_is_told_everything_and_no_stream_notices(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.single() as store, fleet(tmp_path, upstream, 2, store.url) as gateways:
        clients = readers(6, gateways, tokens=3_000)
        until(lambda: gateways[0].charged() == 6)
        store.kill()
        until(lambda: gateways[0].get("/readyz").status_code == gateways[1].get("/readyz").status_code == 503)
        refused = ask(gateways[0].url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
        store.start()
        until(lambda: gateways[0].get("/readyz").status_code == gateways[1].get("/readyz").status_code == 200)
        charged = gateways[0].charged()
        assert charged >= upstream.inside(), "what runs stands in the new store before anything new is admitted"
        assert ask(gateways[1].url).status_code == 200
        assert [one.ended() for one in clients] == ["data: [DONE]"] * 6
        right(gateways, upstream)


def test_A11_a_failover_amid_streams_ends_with_nothing_held(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.sentinel() as trio, fleet(tmp_path, upstream, 2, trio.url) as gateways:
        clients = readers(6, gateways, tokens=3_000)
        trio.fail_over()
        until(lambda: gateways[0].get("/readyz").status_code == gateways[1].get("/readyz").status_code == 200)
        assert ask(gateways[0].url).status_code == 200
        assert [one.ended() for one in clients] == ["data: [DONE]"] * 6
        right(gateways, upstream)


def test_A11_lost_answers_charge_nothing_twice_and_leave_nothing_held(tmp_path: Path) -> None:
    with (
        engine(0, *WIDE) as upstream,
        servers.single() as store,
        threaded("127.0.0.1", store.port) as line,
        fleet(tmp_path, upstream, 1, f"valkey://127.0.0.1:{line.port}/0") as gateways,
    ):
        (front,) = gateways
        statuses = []
        for number in range(12):
            line.answers = Faults(cut_after_bytes=600 * (number % 4)) if number % 3 == 0 else Faults()
            statuses.append(ask(front.url).status_code)
        line.answers = Faults()
        assert set(statuses) <= {200, 429, 503}, f"each is answered, or told when to come back: {statuses}"
        until(lambda: ask(front.url).status_code == 200)
        right(gateways, upstream)


def test_K34_while_the_store_is_away_each_goes_on_within_its_share(tmp_path: Path) -> None:
    shared = {"when_lost": "share"}
    with engine(0, *WIDE) as upstream, servers.single() as store, fleet(tmp_path, upstream, 2, store.url, **shared) as gateways:
        time.sleep(2.0)  # each has heard of the other
        store.kill()
        until(lambda: ask(gateways[0].url).status_code == ask(gateways[1].url).status_code == 200)
        store.start()
        until(lambda: gateways[0].get("/readyz").status_code == 200)
        until(lambda: ask(gateways[1].url).status_code == 200)
        right(gateways, upstream)


def test_H4_two_workers_share_a_port_and_a_ledger_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, servers.single() as store:
        file = configuration(tmp_path, upstream.url, ledger={"url": store.url, "lease_s": LEASE_S})
        with starting("--config", str(file), "--workers", "2", directory=tmp_path) as child, contextlib.ExitStack() as ends:
            assert child.stdout is not None
            lines = (json.loads(line) for line in iter(child.stdout.readline, ""))
            said = sorted(islice((line for line in lines if "admin" in line), 2), key=lambda one: str(one["admin"]))
            assert said[0]["listening"] == said[1]["listening"]
            admins = [one["admin"] for one in said]
            until(lambda: [httpx.get(one + "/readyz").status_code for one in admins] == [200, 200])
            url = said[0]["listening"].removesuffix("/v1")
            until(lambda: ask(url).status_code == 200 and all(_has_served(one) for one in admins))
            killed = _workers(child.pid)[0]
            ends.callback(lambda: [os.kill(one, signal.SIGKILL) for one in _workers(child.pid)])
            os.kill(killed, signal.SIGKILL)
            until(lambda: len(_workers(child.pid)) == 2 and killed not in _workers(child.pid), STARTED_S)
            until(lambda: [httpx.get(one + "/readyz").status_code for one in admins] == [200, 200], STARTED_S)
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0


def _has_served(admin: str) -> bool:
    return 'outcome="completed"' in httpx.get(admin + "/metrics").text


def _workers(pid: int) -> list[int]:
    """The processes it has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in listed.read_text().split()] if listed.exists() else []


def test_H4_workers_over_a_ledger_of_one_process_are_refused_with_a_sentence(tmp_path: Path) -> None:
    file = configuration(tmp_path, f"http://127.0.0.1:{free_port()}")
    with starting("--config", str(file), "--workers", "2", directory=tmp_path) as child:
        assert child.wait(20) == 2

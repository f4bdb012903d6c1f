"""What clients, engines and clocks do at their worst, to real processes: nothing is freed early, and nothing stays held.

An engine that ignores aborts, clients that vanish without a word or read too slowly, two hundred that leave an engine which
cannot be counted, one that leaves in a crowd of four hundred strangers, and a clock that jumps.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import Streams
from processes import Engine, Gateway, ask, configuration, engine, gateway, stream, until

from headworks.testing import servers
from headworks.testing.tcp_fault_proxy import FaultProxy, Faults, threaded

pytestmark = pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="two minutes: HEADWORKS_DRILLS=1 runs them")

WIDE = ("--max-num-seqs", "512", "--speed", "1")
LEASE_S = 2.0
STRANGERS = 400
LEAVING = 200
CONFIRMED_S_MAX = 2.0
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@contextlib.contextmanager
def front_of(place: Path, upstream: Engine, kind: str = "vllm", **pool: object) -> Iterator[Gateway]:
    """One gateway with room for all."""
    pools = {"llama": {"replicas": [{"url": upstream.url, "engine": kind}], "active_requests_max": 400, **pool}}
    ledger = {"url": "memory:", "lease_s": LEASE_S}
    with gateway("--config", str(configuration(place, upstream.url, ledger=ledger, pools=pools))) as made:
        yield made


def never_freed_early(charged: Callable[[], int], upstream: Engine) -> None:
    """Until nothing is inside any more. Asked in this order, what is inside can only have become fewer."""
    while True:
        were_charged, inside = charged(), upstream.inside()
        assert were_charged >= inside, "freed while it was inside the engine"
        if not inside:
            return


def line_to(front: Gateway) -> contextlib.AbstractContextManager[FaultProxy]:
    """What stands between it and its clients."""
    return threaded("127.0.0.1", int(front.url.rpartition(":")[2]))


def right(front: Gateway, upstream: Engine, within_s: float = 30.0) -> None:
    """Nothing is held, neither by the ledger nor in the engine, and every counter is the sum of its parts."""
    until(lambda: upstream.inside() == 0 and front.charged() == 0, within_s)
    assert front.audit() == []


def test_K12_what_an_engine_goes_on_with_stays_charged_until_it_has_ended_it(tmp_path: Path) -> None:
    with engine(0, *WIDE, "--ignore-abort") as upstream, front_of(tmp_path, upstream) as front:
        with stream(front.url, tokens=600) as lines:
            next(lines)
        never_freed_early(front.charged, upstream)
        right(front, upstream)


def test_E2_clients_that_vanish_without_a_word_hold_nothing_for_ever(tmp_path: Path) -> None:
    """No FIN and no reset ever comes: whatever is sent to them is taken by the line and goes nowhere."""
    with engine(0, *WIDE) as upstream, front_of(tmp_path, upstream) as front, line_to(front) as line:
        clients = Streams([f"http://127.0.0.1:{line.port}"] * 20, 200)
        until(lambda: clients.begun() == 20)
        line.asks = line.answers = Faults(is_silent=True)
        clients.leave()
        assert ask(front.url).status_code == 200
        right(front, upstream)


def test_H3_readers_that_are_slow_hold_up_nobody_else(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, front_of(tmp_path, upstream) as front, line_to(front) as line:
        line.answers = Faults(bytes_per_s=4_000.0)
        clients = Streams([f"http://127.0.0.1:{line.port}"] * 20, 200)
        until(lambda: clients.begun() == 20)
        until(lambda: upstream.inside() == 0)
        until(lambda: front.charged() == 0)
        assert not all(one.is_over for one in clients.streams), "what the engine has ended is free, whoever still reads"
        assert ask(front.url).status_code == 200
        until(lambda: all(one.is_over for one in clients.streams), 60)
        assert {one.last for one in clients.streams} == {b"data: [DONE]"}
        right(front, upstream)


def test_E6_200_that_leave_an_engine_of_one_protocol_end_with_nothing_held(tmp_path: Path) -> None:
    with engine(0, *WIDE) as upstream, front_of(tmp_path, upstream, "openai", evidence_min="E1") as front:
        clients = Streams([front.url] * LEAVING, 400)
        until(lambda: clients.begun() == LEAVING, 60)
        clients.leave()
        never_freed_early(front.charged, upstream)
        right(front, upstream)


def test_A5_one_that_leaves_among_400_strangers_is_proved_stopped_within_2_s(tmp_path: Path) -> None:
    """Counting says nothing beside so many: its connection was closed by the engine, and the engine's clock went on (E3a)."""
    with engine(0, *WIDE) as upstream, front_of(tmp_path, upstream) as front:
        strangers = Streams([upstream.url] * STRANGERS, 4_000)
        until(lambda: strangers.begun() == STRANGERS, 60)
        with stream(front.url, tokens=3_000) as lines:
            next(lines)
            assert front.charged() == 1
        left_s = time.monotonic()
        until(lambda: front.charged() == 0, 10)
        took_s = time.monotonic() - left_s
        print(f"confirmed after {took_s:.2f} s beside {upstream.inside()} inside")
        assert upstream.inside() >= STRANGERS
        assert took_s < CONFIRMED_S_MAX
        strangers.leave()


@pytest.mark.skipif(FAKETIME is None or bool(servers.why_not()), reason="needs libfaketime and a store")
def test_I10_clocks_that_jump_free_nothing_and_leave_nothing_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clocks of two gateways and their store jump an hour ahead, two back, and to the truth again, amid streams."""
    clock = tmp_path / "clock"
    clock.write_text("+0")
    for name, value in {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with engine(0, *WIDE) as upstream, servers.single() as store, contextlib.ExitStack() as started:
        gateways = []
        for number in range(2):
            directory = tmp_path / str(number)
            directory.mkdir()
            file = configuration(directory, upstream.url, ledger={"url": store.url, "lease_s": LEASE_S})
            gateways.append(started.enter_context(gateway("--config", str(file), directory=directory)))
        for jump in ("+3600", "-3600", "+0"):
            clients = Streams([gateways[number % 2].url for number in range(8)], 400)
            until(lambda clients=clients: clients.begun() == 8, 30)  # type: ignore[misc]
            clock.write_text(jump)
            never_freed_early(lambda: int(str(store.ask("HLEN", "headworks:{main}:live"))), upstream)
            until(lambda: all(ask(one.url).status_code == 200 for one in gateways), 30)
            right(gateways[0], upstream)
            assert gateways[1].audit() == []

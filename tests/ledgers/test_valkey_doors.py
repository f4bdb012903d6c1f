"""The ways to a shared ledger's server: who is asked, who lets us in, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis
import pytest

from headworks.core.commands import Heartbeat, Held
from headworks.ledgers.valkey_place import place_of
from headworks.testing import servers
from headworks.testing.suites.ledger_subject import FIRST, reserve
from tests.ledgers.test_valkey_store import gateways, limits, run, until

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
PASSWORD = "open-sesame"


class Sentinel:
    """Answers who the primary is, or takes connections and says nothing."""

    def __init__(self, primary_port: int, *, is_silent: bool = False) -> None:
        self.asked = 0
        self.port = 0
        self._primary_port = primary_port
        self._is_silent = is_silent

    async def on_connection(self, lines: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        reader, port = hiredis.Reader(), b"%d" % self._primary_port
        while told := await lines.read(4096):
            reader.feed(told)
            while (words := reader.gets()) is not False:
                if not self._is_silent:
                    where = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
                    writer.write(b"+PONG\r\n" if words[0] == b"PING" else where)
        writer.close()


@asynccontextmanager
async def standing(*sentinels: Sentinel) -> AsyncIterator[str]:
    """Their URL."""
    listeners = [await asyncio.start_server(one.on_connection, "127.0.0.1", 0) for one in sentinels]
    for one, listening in zip(sentinels, listeners, strict=True):
        one.port = listening.sockets[0].getsockname()[1]
    try:
        yield f"valkey+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in sentinels)}/main/0"
    finally:
        for listening in listeners:
            listening.close()


def test_A11_a_silent_first_sentinel_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headworks.ledgers.valkey.CONNECT_S", 0.3)

    async def steps() -> None:
        with servers.single() as primary:
            silent, other = Sentinel(primary.port, is_silent=True), Sentinel(primary.port)
            async with standing(silent, other) as url, gateways(url) as (one,):
                assert [answer.outcome for answer in await one.ask(Heartbeat(FIRST))] == ["ok"]
                assert (silent.asked, other.asked) == (1, 1)

    run(steps())


def test_A11_a_sentinel_that_sends_us_astray_is_asked_last() -> None:
    """It has not heard of a failover: where it sends us, nobody is any more."""

    async def steps() -> None:
        with servers.single() as primary:
            stale, other = Sentinel(servers.free_port()), Sentinel(primary.port)
            async with standing(stale, other) as url, gateways(url) as (one,):
                assert [answer.outcome for answer in await one.ask(Heartbeat(FIRST))] == ["ok"]
                assert (stale.asked, other.asked) == (1, 1)

    run(steps())


def test_H2_the_password_is_in_no_message_where_a_server_does_not_know_how_to_ask_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It repeats the words of a command it does not know."""
    caplog.set_level(logging.DEBUG)

    async def steps() -> None:
        with servers.single("--rename-command", "AUTH", "") as server:
            url = f"valkey://bob:{PASSWORD}@127.0.0.1:{server.port}/0"
            with pytest.raises(servers.ServerError, match=PASSWORD):
                server.ask("AUTH", "bob", PASSWORD)
            async with gateways(url) as (one,):
                await until(lambda: one.lost == 1)
                assert one.store.failure == f"The ledger's server 127.0.0.1:{server.port} does not let us in: ERR"
            assert PASSWORD not in repr(place_of(url))

    run(steps())
    assert PASSWORD not in caplog.text


def test_A11_a_store_that_refuses_to_write_is_lost_until_it_writes_again() -> None:
    async def steps() -> None:
        with servers.single() as server:
            async with gateways(server.url) as (one,):
                await one.ask(Heartbeat(FIRST))
                server.ask("CONFIG", "SET", "maxmemory", "1")
                never = one.send([Heartbeat(FIRST)])
                await until(lambda: one.lost == 1)
                assert one.store.failure.startswith("OOM ") and not never.done()
                server.ask("CONFIG", "SET", "maxmemory", "0")
                assert [answer.outcome for answer in await one.ask(Heartbeat(FIRST))] == ["ok"]

    run(steps())


def test_A11_a_promotion_is_another_epoch_though_the_process_is_the_same() -> None:
    """Demoted and promoted again: what it had acknowledged before may be gone."""

    async def steps() -> None:
        with servers.single() as one_server, servers.single("--repl-diskless-sync-delay", "0") as other:
            async with gateways(one_server.url) as (one,):
                await one.ask(Heartbeat(FIRST), limits(100), reserve("kept", 10))
                other.ask("REPLICAOF", "127.0.0.1", str(one_server.port))
                await until(lambda: other.field("replication", "master_link_status") == "up")
                other.ask("REPLICAOF", "NO", "ONE")
                await one.ask(reserve("gone", 20))
                run_id = one_server.run_id()
                one_server.ask("REPLICAOF", "127.0.0.1", str(other.port))
                one.send([Heartbeat(FIRST)])
                await until(lambda: one.lost == 1)
                await until(lambda: one_server.field("replication", "master_link_status") == "up")
                one_server.ask("REPLICAOF", "NO", "ONE")
                (held,) = await one.ask(Held(FIRST))
                assert [(record.execution, record.state) for record in held.records] == [("kept", "ORPHANED")]
                assert len(set(one.epochs)) == 2
                assert one_server.run_id() == run_id

    run(steps())

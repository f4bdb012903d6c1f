"""What the client of a shared ledger does with its connection: coalescing, losses, epochs, wake-ups, other versions."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from headworks.core.commands import Answer, Command, Heartbeat, Held, SetLimits, Stop
from headworks.core.fair import Flow
from headworks.core.types import Charge, Owner
from headworks.ledgers.base import Told
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.valkey import COMMANDS_MAX, ValkeyStore
from headworks.ledgers.valkey_line import open_line
from headworks.ledgers.valkey_place import place_of
from headworks.testing import servers
from headworks.testing.suites.ledger_subject import FIRST, SECOND, reserve

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
DOMAINS = count(1)
WITHIN_S = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


class Gateway:
    """One gateway's store, and what it was told."""

    def __init__(self, url: str, domain: str, owner: Owner = FIRST) -> None:
        self.owner = owner
        self.lost = 0
        self.epochs: list[str] = []
        self.woken: list[tuple[str, Flow | None]] = []
        told = Told(self._note_lost, self.epochs.append, lambda pool, flow: self.woken.append((pool, flow)))
        limits = {"lease_ms": 5_000, "remember_ms": 60_000}
        self.store = ValkeyStore(place_of(url), domain, **limits, clock_s=time.monotonic, owner=owner, told=told)

    def _note_lost(self) -> None:
        self.lost += 1

    async def ask(self, *commands: Command) -> list[Answer]:
        """Until it is answered: a list that is lost is asked again, as a gate does."""
        for _ in range(100):
            future = self.send(commands)
            done, _ = await asyncio.wait([future], timeout=0.5)
            if done:
                return future.result()
        raise AssertionError("no answer")

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Answer]]:
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.store.apply(commands, future.set_result)
        return future


@asynccontextmanager
async def gateways(url: str, *owners: Owner, domain: str = "") -> AsyncIterator[list[Gateway]]:
    domain = domain or f"s{next(DOMAINS)}"
    found = [Gateway(url, domain, owner) for owner in owners or (FIRST,)]
    for one in found:
        one.store.start()
    try:
        yield found
    finally:
        for one in found:
            one.store.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WITHIN_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to pass")


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(steps, 30))


def limits(tokens: int) -> SetLimits:
    return SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", tokens),))


def calls(server: servers.Server) -> int:
    """Scripts that were run since the server began."""
    row = next((row for row in str(server.ask("INFO", "commandstats")).splitlines() if row.startswith("cmdstat_fcall:")), "")
    return int(row.partition("calls=")[2].partition(",")[0] or 0)


def test_A11_what_waits_goes_with_the_next_of_two_calls(server: servers.Server) -> None:
    """Of 200 lists in one turn two go alone; the others wait for an answer and go together, in order."""

    async def steps() -> None:
        async with gateways(server.url) as (one,):
            await one.ask(Heartbeat(FIRST), limits(1_000))
            before = calls(server)
            answers = [one.send([reserve(f"x{number}", 1)]) for number in range(200)]
            sequences = [(await answer)[0].sequence for answer in answers]
            assert sequences == list(range(sequences[0], sequences[0] + 200))
            assert calls(server) - before == 2 + -(-198 // COMMANDS_MAX)

    run(steps())


def sizes(server: servers.Server) -> list[int]:
    """How many commands each script was called with. The log cuts off after 32 words and says how many more."""
    entries = server.ask("SLOWLOG", "GET", "-1")
    assert isinstance(entries, list)
    words = [entry[3] for entry in reversed(entries) if entry[3][0] == "FCALL"]
    lengths = [
        len(one) - 1 + int(one[-1].split(" ")[1].lstrip("(")) if one[-1].startswith("... (") else len(one) for one in words
    ]
    return [length - len(("FCALL", "name", "1", "root", "asked")) for length in lengths]


def test_A11_who_asks_on_with_each_answer_keeps_two_calls_equally_long_under_way(server: servers.Server) -> None:
    """One call of 63 and one of 1 in turn would leave the server without work while the 63 answers are taken in."""

    async def steps() -> None:
        async with gateways(server.url) as (one,):
            await one.ask(Heartbeat(FIRST), limits(100_000))
            server.ask("CONFIG", "SET", "slowlog-max-len", "1000")
            server.ask("CONFIG", "SET", "slowlog-log-slower-than", "0")
            server.ask("SLOWLOG", "RESET")
            ended = asyncio.Event()
            left = 64 * 20

            def again(name: str, answers: list[Answer]) -> None:
                nonlocal left
                left -= 1
                if left >= 64:
                    one.store.apply([reserve(name, 1)], lambda told: again(name, told))
                elif not left:
                    ended.set()

            for number in range(64):
                one.store.apply([reserve(f"on{number}", 1)], lambda told, number=number: again(f"on{number}", told))  # type: ignore[misc]
            await ended.wait()
            server.ask("CONFIG", "SET", "slowlog-log-slower-than", "-1")
            made = [size for size in sizes(server) if size > 0]
            assert sum(made) == 64 * 20
            assert made[6:30] == [32] * 24

    run(steps())


def test_A11_a_long_list_is_one_call_and_a_list_is_never_parted(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server.url) as (one,):
            await one.ask(Heartbeat(FIRST), limits(1_000))
            before = calls(server)
            lists = [[reserve(f"{size}-{number}", 1) for number in range(size)] for size in (1, 1, 300, 40, 40)]
            answers = await asyncio.gather(*(one.send(commands) for commands in lists))
            assert [[answer.execution for answer in told] for told in answers] == [[c.execution for c in one] for one in lists]
            assert calls(server) - before == 5

    run(steps())


def test_D1_the_gateway_whose_turn_it_is_hears_of_free_capacity(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server.url, FIRST, SECOND) as (one, other):
            await one.ask(limits(100), Heartbeat(FIRST), reserve("x", 100))
            assert [answer.outcome for answer in await other.ask(Heartbeat(SECOND), reserve("y", 100, owner=SECOND))] == [
                "ok",
                "refused",
            ]
            await one.ask(Stop("x", FIRST, "E1", "completed", None))
            await until(lambda: other.woken == [("pool", ("interactive", "acme"))])
            assert one.woken == []

    run(steps())


def test_D1_an_older_script_names_the_pool_alone_and_is_heard(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server.url, FIRST) as (one,):
            await one.ask(Heartbeat(FIRST))
            await one.store.ask("SPUBLISH", f"{one.store.root}:wake:{FIRST.gateway}\0{FIRST.boot}", "pool")
            await until(lambda: one.woken == [("pool", None)])

    run(steps())


def test_D1_an_older_gateway_hears_of_the_pool_on_the_channel_it_knows(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server.url, FIRST) as (one,):
            heard: list[object] = []
            ears = await open_line(await place_of(server.url).find(one.store.root), lambda: None, heard.append)
            channel = f"{one.store.root}:wake:{SECOND.gateway}\0{SECOND.boot}"
            await ears.asked("SSUBSCRIBE", channel)
            await one.ask(limits(100), Heartbeat(FIRST), Heartbeat(SECOND), reserve("x", 100), reserve("y", 100, owner=SECOND))
            await one.ask(Stop("x", FIRST, "E1", "completed", None))
            await until(lambda: heard == [[b"smessage", channel.encode(), b"pool"]])
            ears.close()

    run(steps())


def test_A11_a_killed_server_that_comes_back_empty_is_another_epoch() -> None:
    """What was under way is not answered; the gate hears of the loss and of the new epoch; nothing is left of the old one."""

    async def steps() -> None:
        with servers.single() as mortal:
            async with gateways(mortal.url) as (one,):
                await one.ask(Heartbeat(FIRST), limits(100), reserve("x", 60))
                mortal.pause()
                never = one.send([reserve("y", 10)])
                os.kill(mortal.pid, signal.SIGKILL)  # as it stands: it must not come to answering
                mortal.kill()
                await until(lambda: one.lost == 1)
                dropped = one.send([reserve("z", 10)])
                await asyncio.to_thread(mortal.start)
                assert (await one.ask(reserve("z", 10)))[0].outcome == "fenced"
                assert len(one.epochs) == 2 and one.epochs[0] != one.epochs[1]
                assert not never.done() and not dropped.done()
                assert one.lost == 1

    run(steps())


def test_A11_a_server_that_comes_back_with_its_data_has_orphans() -> None:
    async def steps() -> None:
        with servers.single() as mortal:
            async with gateways(mortal.url) as (one,):
                await one.ask(Heartbeat(FIRST), limits(100), reserve("x", 60))
                mortal.ask("SAVE")
                mortal.kill()
                await asyncio.to_thread(mortal.start)
                (held,) = await one.ask(Held(FIRST))
                assert [(record.execution, record.state) for record in held.records] == [("x", "ORPHANED")]
                assert len(one.epochs) == 2

    run(steps())


def test_A11_an_emptied_store_is_noticed_by_everybody(server: servers.Server) -> None:
    """Nothing that was meant for the book before is run in the one after, whoever opened that."""

    async def steps() -> None:
        async with gateways(server.url, FIRST, SECOND) as (one, other):
            await one.ask(Heartbeat(FIRST))
            await other.ask(Heartbeat(SECOND))
            server.ask("FLUSHALL")
            assert (await one.ask(reserve("x", 1)))[0].outcome == "fenced"
            await one.ask(Heartbeat(FIRST))
            assert (await other.ask(reserve("y", 1, owner=SECOND)))[0].outcome == "fenced"
            assert len(one.epochs) == len(other.epochs) == 2
            assert one.epochs == other.epochs

    run(steps())


def test_A11_a_server_that_is_silent_is_lost_in_time_and_one_that_forgot_the_script_is_told_again(
    server: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headworks.ledgers.valkey.CALL_S", 0.2)

    async def steps() -> None:
        async with gateways(server.url) as (one,):
            await one.ask(Heartbeat(FIRST))
            server.ask("FUNCTION", "FLUSH")
            assert (await one.ask(Heartbeat(FIRST)))[0].outcome == "ok"
            assert one.lost == 1
            server.pause()
            one.send([Heartbeat(FIRST)])
            await until(lambda: one.lost == 2)
            server.go_on()
            assert (await one.ask(Heartbeat(FIRST)))[0].outcome == "ok"
            assert len(one.epochs) == 1, "it is the same store as before"

    run(steps())


def test_H4_an_older_version_refuses_a_newer_ledger_and_says_so(server: servers.Server) -> None:
    async def steps() -> None:
        server.ask("HSET", "headworks:{newer}", "schema", "3")
        async with gateways(server.url, domain="newer") as (one,):
            one.send([Heartbeat(FIRST)])
            await until(lambda: one.lost == 1)
            assert one.store.failure == "The ledger was written under schema 3; this version of headworks knows 2"
            with pytest.raises(LedgerError, match="does not answer: The ledger was written under schema 3"):
                await one.store.look()
        assert server.ask("HGETALL", "headworks:{newer}") == ["schema", "3"], "it was touched"

    run(steps())


def test_A11_the_last_word_of_a_gateway_goes_out_before_it_closes(server: servers.Server) -> None:
    async def steps() -> None:
        from headworks.core.commands import Depart

        async with gateways(server.url, FIRST, SECOND) as (one, other):
            await other.ask(Heartbeat(SECOND), limits(1_000))
            await one.ask(Heartbeat(FIRST))
            for number in range(200):
                one.send([reserve(f"x{number}", 1)])
            one.send([Depart(FIRST)])
            one.store.close()
            for _ in range(100):
                (beat,) = await other.ask(Heartbeat(SECOND))
                if beat.owners == (SECOND,):
                    break
                await asyncio.sleep(0.01)
            assert beat.owners == (SECOND,)
            assert len((await other.ask(Held(FIRST)))[0].records) == 200

    run(steps())

"""Stored keys in a shared store that dies, comes back empty, older, or as somebody's replica (H2, A11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path

import pytest

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.keys import Denied, Identity
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.key_rules import ACTIVE_MAX, ENDED_KEPT_MAX, Change, StoredKey, Wanted
from headworks.ledgers.valkey_keys import ValkeyKeys, Visit
from headworks.ledgers.valkey_place import place_of
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())

ACME = Wanted("acme")
PEPPER = "a-pepper-that-the-operator-gives-to-all"
ROOT = "headworks:{main}"
TENANTS = '{"tenants": {"acme": {}}, "pools": {"llama": {"replicas": [{"url": "http://127.0.0.1:1", "engine": "vllm"}]}}}'


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


class Gateway(ValkeyKeys):
    """What a gateway knows of the keys: it lives on while its store comes and goes."""

    def __init__(self, server: servers.Server) -> None:
        self._visit = Visit(place_of(server.url), ROOT)
        super().__init__(server.url, ROOT, PEPPER, self._visit.ask)

    async def kept(self) -> list[StoredKey]:
        self._visit.close()
        return await super().kept()

    async def changes(self) -> str:
        self._visit.close()
        return await super().changes()

    async def states(self) -> dict[str, str]:
        return {key.id: key.state(200.0) for key in await self.kept()}

    async def issued(self, wanted: Wanted = ACME) -> tuple[str, StoredKey]:
        made = await self.issue(wanted, 100.0)
        assert made is not None
        return made


def lives(server: servers.Server, number: int) -> None:
    """A gateway has opened the ledger in this life of the store."""
    server.ask("HSET", ROOT, "schema", "2", "epoch", f"life-{number}")


def run(steps: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(steps, 30))


def test_A11_a_store_that_came_back_empty_is_told_the_keys_and_what_was_revoked_stays_so(server: servers.Server) -> None:
    async def steps() -> None:
        first, second = Gateway(server), Gateway(server)
        lives(server, 1)
        _, good = await first.issued()
        _, ended = await first.issued()
        assert await second.states() == {good.id: "active", ended.id: "active"}
        await first.revoke(ended.id, 150.0)  # the second has not heard of it when the store is lost
        server.kill()
        server.start()
        assert await second.states() == {good.id: "active", ended.id: "active"}, "before any gateway has opened it"
        lives(server, 2)
        assert await first.states() == {good.id: "active", ended.id: "revoked"}
        assert await second.states() == {good.id: "active", ended.id: "revoked"}
        assert await Gateway(server).states() == {good.id: "active", ended.id: "revoked"}
        assert good.hash in [key.hash for key in await first.kept()]

    run(steps())


def test_A11_a_store_that_came_back_older_takes_no_revocation_back(server: servers.Server) -> None:
    async def steps() -> None:
        first = Gateway(server)
        lives(server, 1)
        _, old = await first.issued()
        server.ask("SAVE")
        await first.revoke(old.id, 150.0)
        _, new = await first.issued()
        server.kill()
        server.start("--dbfilename", "dump.rdb")
        assert await Gateway(server).states() == {old.id: "active"}
        assert await first.states() == {old.id: "revoked"}, (
            "of one life: what is missing has been forgotten, nothing lives again"
        )
        lives(server, 2)
        again = Gateway(server)
        assert await again.states() == {old.id: "active"}
        told = Gateway(server)
        told._known, told._epoch = {old.id: old, new.id: new}, "life-1"
        told._known[old.id].revoked_s = 150.0
        assert await told.states() == {old.id: "revoked", new.id: "active"}
        assert await again.states() == {old.id: "revoked", new.id: "active"}

    run(steps())


def test_H2_who_was_away_brings_nothing_back_that_was_forgotten_meanwhile(server: servers.Server) -> None:
    async def steps() -> None:
        here, away = Gateway(server), Gateway(server)
        lives(server, 1)
        _, first = await here.issued()
        assert await away.states() == {first.id: "active"}
        await here.revoke(first.id, 101.0)
        for number in range(ENDED_KEPT_MAX + 1):
            made = await here.issue(ACME, 102.0 + number)
            assert made is not None
            await here.revoke(made[1].id, 102.0 + number)
        await here.issued()
        assert first.id not in await here.states()
        assert first.id not in await away.states()
        assert first.id not in await here.states()

    run(steps())


def test_H2_neither_key_nor_pepper_stands_in_the_store(server: servers.Server) -> None:
    async def steps() -> None:
        secret, key = await Gateway(server).issued()
        server.ask("SAVE")
        (dump,) = [path.read_bytes() for path in server.directory.glob("*.rdb")]
        assert key.id.encode() in dump
        assert secret.removeprefix("hw-").encode() not in dump
        assert PEPPER.encode() not in dump

    run(steps())


def test_A11_a_replica_that_may_be_behind_answers_nothing(server: servers.Server) -> None:
    async def steps() -> None:
        keys = Gateway(server)
        await keys.issued()
        server.ask("REPLICAOF", "127.0.0.1", str(servers.free_port()))
        with pytest.raises(LedgerError, match="READONLY"):
            await keys.kept()
        with pytest.raises(LedgerError, match="READONLY"):
            await keys.changes()

    run(steps())


def test_H2_a_put_back_beside_an_issue_keeps_both(server: servers.Server) -> None:
    """Whoever comes first after a restart: nothing of either is lost, though a tenant may then have more than its two."""

    async def steps() -> None:
        first = Gateway(server)
        lives(server, 1)
        names = [(await first.issued())[1].id for _ in range(ACTIVE_MAX)]
        server.kill()
        server.start()
        lives(server, 2)
        _, new = await Gateway(server).issued()
        assert await first.states() == dict.fromkeys([*names, new.id], "active")

    run(steps())


class Interrupted(Gateway):
    """Somebody else issues a key between what this one has read and what it writes, once."""

    other: Gateway | None = None

    async def _write(self, mark: str, change: Change) -> bool:
        other, self.other = self.other, None
        if other is not None:
            await other.issued()
        return await super()._write(mark, change)


def test_H2_what_was_decided_on_keys_that_are_no_longer_so_is_decided_again(server: servers.Server) -> None:
    async def steps() -> None:
        one = Interrupted(server)
        await one.issued()
        one.other = Gateway(server)
        assert await one.issue(ACME, 100.0) is None, "the other's was the second, which is the most"
        assert len(await one.states()) == ACTIVE_MAX

    run(steps())


class Watched:
    """A gateway's watch over a store, by a clock that is moved by hand."""

    def __init__(self, server: servers.Server) -> None:
        self.now_s = 0.0
        config = load_bytes(TENANTS.encode(), "h.yaml", {}).config_or_raise()
        self.store = Gateway(server)
        self.watch = KeyWatch(
            self.store,
            build.settings(config, {}),
            build.policy(config, number=1),
            lambda: 100.0,
            clock_s=lambda: self.now_s,
        )

    def who(self, key: str) -> Identity | Denied:
        return self.watch.keys.identify(f"Bearer {key}".encode(), "a", 0.0)


def test_H2_without_a_store_known_keys_work_for_an_hour_and_what_was_revoked_does_not(
    server: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        one = Watched(server)
        assert one.who("hw-of-nobody") == Denied("ledger_unavailable"), "nobody has read yet which there are"
        key, kept = await one.store.issued()
        gone, ended = await one.store.issued()
        await one.watch.look()
        await Gateway(server).revoke(ended.id, 100.0)
        assert isinstance(one.who(gone), Identity)
        await one.watch.look()
        server.kill()
        for one.now_s in (1.0, 3_599.0):
            await one.watch.look()
            assert isinstance(one.who(key), Identity)
            assert one.who(gone) == one.who("hw-of-nobody") == Denied("invalid_api_key")
        one.now_s = 3_600.0
        await one.watch.look()
        assert one.who(key) == one.who(gone) == Denied("ledger_unavailable")
        assert one.watch.clients == {"anonymous"}
        server.start()
        await one.watch.look()
        assert one.who(key) == Identity("acme", f"acme/{kept.id}")
        assert one.who(gone) == Denied("invalid_api_key")

    with caplog.at_level(logging.ERROR):
        run(steps())
    assert len(caplog.records) == 1


def test_H2_a_start_waits_for_a_store_and_goes_on_without(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        server.kill()
        one = Watched(server)
        await one.watch.start(0.0)
        assert one.who("hw-of-nobody") == Denied("ledger_unavailable")
        assert one.watch.admin_exists, "nobody knows yet that it does not, so the admin port is open to nobody"
        server.start()
        await one.watch.look()
        assert not one.watch.admin_exists
        server.kill()
        await one.watch.look()
        assert not one.watch.admin_exists, "it was read once, and there was none"
        await one.watch.close()
        with pytest.raises(LedgerError):
            await Watched(server).watch.start()

    run(steps())

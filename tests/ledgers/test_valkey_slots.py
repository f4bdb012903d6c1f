"""A shared ledger in a cluster: where its slot is, and what happens while it moves."""

from __future__ import annotations

import asyncio

import pytest

from headworks.core.commands import Heartbeat, Stop
from headworks.ledgers import valkey_place
from headworks.ledgers.valkey_line import Door
from headworks.ledgers.valkey_place import Place
from headworks.testing import servers
from headworks.testing.suites.ledger_subject import FIRST, SECOND, reserve
from tests.ledgers.test_valkey_store import gateways, limits, run, until

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())


@pytest.mark.parametrize("told", [None, b"", b"?"], ids=["null", "empty", "unknown"])
def test_A11_a_node_that_does_not_say_its_host_is_where_it_was_asked(
    told: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cluster-preferred-endpoint-type unknown-endpoint`, and a node that has not been told its own name."""

    async def asked(door: Door, *words: str) -> object:
        return 5 if words[1] == "KEYSLOT" else [[0, 16_383, [told, 7_001, b"id"]]]

    monkeypatch.setattr(valkey_place, "_asked", asked)
    found = asyncio.run(Place("cluster", (Door("store.example", 7_000),), "").find("key"))
    assert (found.host, found.port) == ("store.example", 7_001)


def test_A11_nothing_is_changed_while_the_slot_moves_and_all_is_there_afterwards() -> None:
    async def steps() -> None:
        with servers.cluster() as nodes:
            async with gateways(nodes.url) as (one,):
                await one.ask(Heartbeat(FIRST), Heartbeat(SECOND), limits(100), reserve("x", 40), reserve("y", 60))
                await one.ask(reserve("waits", 50, tenant="zeta"))
                root = one.store.root
                source = nodes.holder(root)
                target = next(node for node in nodes.members if node is not source)
                slot, there = str(source.ask("CLUSTER", "KEYSLOT", root)), str(target.ask("CLUSTER", "MYID"))
                target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", str(source.ask("CLUSTER", "MYID")))
                source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
                keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, "100")
                assert isinstance(keys, list)
                stood = [source.ask("DUMP", str(key)) for key in keys]
                never = one.send([reserve("z", 100, tenant="beta"), Stop("x", FIRST, "E1", "completed", None)])
                await until(lambda: one.lost == 1)
                assert [source.ask("DUMP", str(key)) for key in keys] == stood
                assert source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == len(keys)
                source.ask("MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *map(str, keys))
                for node in (target, source, *nodes.members):
                    node.ask("CLUSTER", "SETSLOT", slot, "NODE", there)
                (stopped,) = await one.ask(Stop("x", FIRST, "E1", "completed", None))
                view = await one.store.look(ended=True)
                assert (stopped.outcome, view.held("pool:pool", "tokens"), view.check()) == ("ok", 60, []), "y alone"
                assert not never.done()

    run(steps())

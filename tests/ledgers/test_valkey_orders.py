"""The last word about each subject in a shared store: the later one counts, whoever comes first (F13)."""

from __future__ import annotations

import asyncio

import pytest

from headworks.ledgers.valkey_orders import ValkeyOrders, Word
from headworks.ledgers.valkey_place import place_of
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())

ROOT = "headworks:{main}"
FROZEN = Word("freeze", "acme", "ann", "it floods us", "2026-11-30T10:00:00Z", 1_000)
THAWED = Word("thaw", "acme", "bob", "mended", "2026-11-30T10:00:01Z", 2_000)


def test_F13_the_later_word_counts_whichever_comes_first() -> None:
    from headworks.ledgers.valkey_keys import Visit

    async def steps() -> None:
        with servers.single() as server:
            visit = Visit(place_of(server.url), ROOT)
            orders = ValkeyOrders(ROOT, visit.ask)
            assert await orders.tell({}) == {}
            assert await orders.tell({"tenant acme": FROZEN}) == {"tenant acme": FROZEN}
            assert await orders.tell({"tenant acme": THAWED}) == {"tenant acme": THAWED}
            assert await orders.tell({"tenant acme": FROZEN, "tenant beta": FROZEN}) == {
                "tenant acme": THAWED,
                "tenant beta": FROZEN,
            }
            visit.close()

    asyncio.run(steps())


def test_F13_of_two_words_of_one_instant_the_same_one_counts_whichever_comes_first() -> None:
    from headworks.ledgers.valkey_keys import Visit

    words = [Word(verb, "acme", "ann", "", "2026-11-30T10:00:00Z", 1_000) for verb in ("freeze", "thaw")]
    last = max(words, key=Word.place)

    async def steps() -> None:
        with servers.single() as server:
            visit = Visit(place_of(server.url), ROOT)
            orders = ValkeyOrders(ROOT, visit.ask)
            for about, order in (("tenant a", words), ("tenant b", words[::-1])):
                for word in (*order, *order):
                    await orders.tell({about: word})
            assert await orders.tell({}) == {"tenant a": last, "tenant b": last}
            visit.close()

    asyncio.run(steps())

"""What the gateways of a shared ledger say to each other, over its store's channels.

A question goes to all who listen, an answer to whoever asked. Nothing of it is kept in the store, and no gateway has to know
where another one is, or how to be let in there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headworks.core.types import Owner
from headworks.ledgers.valkey import named
from headworks.ledgers.valkey_view import living

if TYPE_CHECKING:
    from headworks.ledgers.valkey import ValkeyStore

ASK, TELL = "ask", "tell"


class ValkeyPost:
    """One gateway's. `asked` hears questions, its own ones too; `told` hears answers to it."""

    def __init__(self, store: ValkeyStore, owner: Owner, asked: Callable[[bytes], None], told: Callable[[bytes], None]) -> None:
        self._store = store
        self._owner = owner
        store.listen(ASK, asked)
        store.listen(f"{TELL}:{named(owner)}", told)

    async def ask(self, question: bytes) -> tuple[list[Owner], int]:
        """Who lives beside us by the ledger, and how many beside us heard it. Raises `LedgerError`."""
        boots = await self._store.ask("HGETALL", f"{self._store.root}:boots")
        heard = await self._store.ask("SPUBLISH", f"{self._store.root}:{ASK}", question)
        assert isinstance(boots, list) and isinstance(heard, int)
        return [owner for owner in living(boots) if owner != self._owner], heard - 1

    async def tell(self, owner: Owner, answer: bytes) -> None:
        """Answer one. Raises `LedgerError`."""
        await self._store.ask("SPUBLISH", f"{self._store.root}:{TELL}:{named(owner)}", answer)

"""A shared store as the suite wants it: on a real server, asked synchronously, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, TypeVar

from headworks.core.commands import Answer, Command
from headworks.core.seams import LedgerStore
from headworks.ledgers.valkey import ValkeyStore
from headworks.ledgers.valkey_place import place_of
from headworks.ledgers.valkey_script import script
from headworks.testing.servers import Server
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS, Opened
from tests.ledgers.valkey_plain import Wire

CLOCK = 'local function clock_ms() return tonumber(redis.call("GET", ROOT .. ":clock") or "0") end'
SCRIPT = script(CLOCK)
ANSWER_S = 20.0
Result = TypeVar("Result")
DOMAINS = count(1)
"""Of all worlds: several may stand on one server."""


class Waited:
    """A store whose answers can be waited for from outside its loop."""

    def __init__(self, world: ValkeyWorld, store: ValkeyStore) -> None:
        self.guarantee = store.guarantee
        self.store = store
        self._world = world
        self.open_lists = 0

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        self.open_lists += 1

        def given(answers: list[Answer]) -> None:
            self.open_lists -= 1
            answered(answers)
            if not self.open_lists:
                self._world.stop()

        self.store.apply(commands, given)

    def now_ms(self) -> int:
        return self.store.now_ms()

    def close(self) -> None:
        self.store.close()


class ValkeyWorld:
    """Stores on one server, each fresh one in a domain of its own. `close` it."""

    def __init__(self, url: str, holder: Callable[[str], Server]) -> None:
        self._url = url
        self._holder = holder
        self._loop = asyncio.new_event_loop()
        self._now_ms = 0
        self._is_settling = False
        self._wires: dict[int, Wire] = {}
        self._domain = next(DOMAINS)
        self.store = self._open()

    def opened(self) -> Opened:
        """For the suite."""
        return Opened(self.store, self.advance, self.settle, self._reopen, self._fresh, self.check)

    def run(self, what: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(what, ANSWER_S))

    def advance(self, by_ms: int) -> None:
        self._now_ms += by_ms
        self.ask("SET", f"{self.store.store.root}:clock", str(self._now_ms))

    def stop(self) -> None:
        """All lists are answered."""
        if self._is_settling:
            self._loop.stop()

    def settle(self) -> None:
        if self.store.open_lists:
            self._is_settling = True
            self._loop.run_forever()  # until the last answer stops it: no task for each of thousands of lists
            self._is_settling = False

    def check(self) -> list[str]:
        return self.run(self.store.store.look(ended=True)).check()

    def ask(self, *words: str) -> Any:
        """The server that keeps the domain, past the store."""
        port = self._holder(self.store.store.root).port
        if port not in self._wires:
            self._wires[port] = Wire(port)
        return self._wires[port].ask(*words)

    def close(self) -> None:
        self.store.close()
        for wire in self._wires.values():
            wire.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _reopen(self) -> LedgerStore:
        """A server that comes back with what it held, under another run id: nobody it knew counts as living."""
        root = self.store.store.root
        self.store.close()
        self.ask("HSET", root, "epoch", "another-process@0.0")
        return self._open()

    def _fresh(self) -> Waited:
        self.store.close()
        self._domain = next(DOMAINS)
        return self._open()

    def _open(self) -> Waited:
        store = ValkeyStore(
            place_of(self._url),
            f"d{self._domain}",
            lease_ms=LEASE_MS,
            remember_ms=REMEMBER_MS,
            clock_s=lambda: 0.0,
            ledger=SCRIPT,
        )
        self.store = Waited(self, store)
        self.advance(0)
        self._loop.call_soon(store.start)
        self.run(self._until_open())
        return self.store

    async def _until_open(self) -> None:
        done = asyncio.Event()
        while not done.is_set():
            self.store.apply([], lambda answers: done.set())
            await asyncio.sleep(0.005)

"""One of several processes that race for the same limits, and write down all they asked and heard.

    python tests/drills/racer.py URL NUMBER ROUNDS FILE [sessions]

Says that it is ready, and waits for a line. Then it reserves, holds what it was granted for a moment, and stops; or it opens a
session, runs calls in it and closes it, now and then twice. An answer that does not come is asked for again, the same. What was
asked and heard goes to FILE as a pickled list of `headworks.testing.history.Asked`.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from random import Random
from typing import Any

from headworks.core.commands import Answer, CloseSession, Command, Heartbeat, Opening, Reserve, Stop
from headworks.core.types import Owner, Usage
from headworks.ledgers.valkey import ValkeyStore
from headworks.ledgers.valkey_place import place_of
from headworks.testing.history import Asked

ANSWER_S = 0.5
LEASE_MS = 600_000
SCOPE = "pool:race"
OPENED = (SCOPE, "sessions:race")
"""What a session of this race is charged to."""


class Racer:
    def __init__(self, url: str, number: int) -> None:
        self.history: list[Asked] = []
        self.owner = Owner("racer", f"boot-{number}")
        self._number = number
        self._random = Random(number)
        self._store = ValkeyStore(
            place_of(url), "race", lease_ms=LEASE_MS, remember_ms=LEASE_MS, clock_s=time.monotonic, owner=self.owner
        )

    async def run(self, rounds: int, once: str) -> None:
        self._store.start()
        await self._ask(Heartbeat(self.owner))
        print("ready", flush=True)
        sys.stdin.readline()
        for round_number in range(rounds):
            name = f"{self._number}-{round_number}"
            await (self._session(name) if once == "sessions" else self._once(name))
        self._store.close()

    async def _once(self, name: str) -> None:
        amount = self._random.choice((200, 300, 400))
        charges = ((SCOPE, "tokens", amount), (SCOPE, "requests", 1))
        flow, even = ("interactive", "acme"), (1.0, 1.0)
        reserve = Reserve(name, None, "", self.owner, "race", "race/0", flow, even, amount, charges, 0, False, "v")
        answer = await self._ask(reserve)
        if answer.outcome in ("granted", "recorded"):
            for _ in range(self._random.randrange(3)):
                await asyncio.sleep(0)
            await self._ask(Stop(name, self.owner, "E1", "completed", None))

    async def _session(self, name: str) -> None:
        """Open one, run up to three calls in it, and close it. What it lacks is somebody else's at that moment."""
        scope, tokens = f"session:{name}", self._random.choice((200, 300))
        answer = await self._ask(self._reserve(f"opens {name}", scope, tokens, OPENED, Opening(LEASE_MS, LEASE_MS)))
        if answer.outcome != "opened":
            return
        for number in range(self._random.randrange(4)):
            call = self._reserve(f"{name}.{number}", scope, self._random.choice((60, 100)), (scope, *reversed(OPENED)), None)
            if (await self._ask(call)).outcome in ("granted", "recorded"):
                usage = self._random.choice((None, Usage(20, 0, self._random.randrange(50), 0.1, "stop", True)))
                await self._ask(Stop(call.execution, self.owner, "E1", "completed", usage))
        for _ in range(self._random.choice((1, 2))):
            await self._ask(CloseSession(scope))

    def _reserve(self, name: str, session: str, tokens: int, scopes: tuple[str, ...], opens: Opening | None) -> Reserve:
        charges = tuple((scope, "tokens", tokens) for scope in scopes)
        flow, even = ("interactive", "acme"), (1.0, 1.0)
        made = Reserve(name, None, "", self.owner, "race", "race/0", flow, even, tokens, charges, 0, False, "v")
        made.session, made.opens = session, opens
        return made

    async def _ask(self, command: Command) -> Answer:
        """Until it is answered. What was not stays in the history as something nobody knows."""
        loop = asyncio.get_running_loop()
        while True:
            heard: asyncio.Future[list[Answer]] = loop.create_future()
            one = Asked(self._number, [command], time.monotonic())
            self._store.apply([command], lambda answers, heard=heard: None if heard.done() else heard.set_result(answers))
            try:
                one.answers = await asyncio.wait_for(heard, ANSWER_S)
            except TimeoutError:
                self.history.append(one)
                continue
            one.heard_s = time.monotonic()
            self.history.append(one)
            return one.answers[0]


class Whole(pickle.Pickler):
    """A dataclass as its constructor and what that takes: compiled ones have no state that pickle would find."""

    def reducer_override(self, one: Any) -> Any:
        if not is_dataclass(one) or isinstance(one, type):
            return NotImplemented
        return type(one), tuple(getattr(one, field.name) for field in fields(one))


def main() -> None:
    url, number, rounds, file, *once = sys.argv[1:]
    racer = Racer(url, int(number))
    asyncio.run(racer.run(int(rounds), "".join(once)))
    with Path(file).open("wb") as written:
        Whole(written).dump(racer.history)


if __name__ == "__main__":
    main()

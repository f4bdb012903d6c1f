"""The whole gateway on a ledger in a file: nothing is sent before it is written, and the next life knows of the last."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from app_scene import LOOPS, PATIENT, chat, first_event, run, scene

from headworks.config import build
from headworks.core.commands import Reserve
from headworks.engines.base import Engine
from headworks.ledgers.journal_rows import decode


def file_ledger(directory: Path, **more: Any) -> dict[str, Any]:
    return {"url": f"sqlite:{directory}/ledger.db", **more}


def row_of(connection: sqlite3.Connection, execution: str) -> bool:
    """Whether the newest rows, as another process sees them, charge this execution."""
    rows = connection.execute("SELECT runs FROM journal ORDER BY number DESC LIMIT 8").fetchall()
    commands = [one for (row,) in rows for run in decode(row) for one in run.commands]
    return any(isinstance(one, Reserve) and one.execution == execution for one in commands)


class Watched:
    """An engine whose every execution is looked up in the file in the moment in which it is to be sent."""

    def __init__(self, engine: Engine, connection: sqlite3.Connection) -> None:
        self.engine = engine
        self.connection = connection
        self.sent: dict[str, bool] = {}

    def run(self, execution: str, *rest: Any) -> Any:
        self.sent[execution] = row_of(self.connection, execution)
        return self.engine.run(execution, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.mark.parametrize("loop", LOOPS)
def test_A9_before_the_first_byte_goes_to_an_engine_its_charge_is_in_the_file(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, ledger=file_ledger(tmp_path)) as front:
            connection = sqlite3.connect(tmp_path / "ledger.db")
            watched = Watched(front.app.engines["llama/0"], connection)
            front.app.engines["llama/0"] = watched  # type: ignore[assignment]
            for _ in range(3):
                answers = await asyncio.gather(*(front.ask(chat(tokens=2 + number % 3)) for number in range(8)))
                assert [answer.status for answer in answers] == [200] * 8
            assert list(watched.sent.values()) == [True] * 24
            connection.close()

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
def test_A9_what_comes_in_one_turn_of_the_loop_is_one_row(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, ledger=file_ledger(tmp_path)) as front:
            clients = [await front.connect() for _ in range(8)]
            connection = sqlite3.connect(tmp_path / "ledger.db")
            before = connection.execute("SELECT max(number) FROM journal").fetchone()[0]
            for client in clients:
                client.send(chat(tokens=2))
            answers = await asyncio.gather(*(client.answer() for client in clients))
            assert [answer.status for answer in answers] == [200] * 8
            rows = connection.execute("SELECT runs FROM journal WHERE number > ?", (before,)).fetchall()
            connection.close()
            promised = [sum(one.promises for one in decode(row)) for (row,) in rows]
            assert sum(promised) == 8
            assert max(promised) > 1, "no two of them shared a commit"
            for client in clients:
                client.close()

    run(loop, steps())


def test_A9_the_next_life_knows_what_the_last_one_left(tmp_path: Path) -> None:
    """Stopped in the middle of a stream that the engine never shows as ended: the charge outlives the process."""

    async def steps() -> None:
        ledger = file_ledger(tmp_path, lease_s=1)
        async with scene(ledger=ledger, settle=False) as front:
            await front.until(lambda: front.app.obstacles() == [])
            engine = front.engines[0]
            client = await front.connect()
            client.send(chat(tokens=1500, stream=True))
            await first_event(client)
            await front.until(lambda: any(record.seen for record in front.charged()))
            await engine.stop()
            front.app.runner._store.write()  # type: ignore[attr-defined]
            # What a kill would leave: the file as it is, without what the end of a process writes.
            for suffix in ("", "-wal"):
                (tmp_path / f"left.db{suffix}").write_bytes((tmp_path / f"ledger.db{suffix}").read_bytes())
            client.close()
        async with scene(ledger={"url": f"sqlite:{tmp_path}/left.db", "lease_s": 1}) as front:
            await front.until(lambda: front.charged() == [])
            held = json.loads((await front.admin("/admin/ledger")).text)
            assert held["charged"] == 0
            assert held["guarantee"].startswith("Exact for this process; a killed process forgets nothing")

    run("asyncio", steps())


def test_H4_a_reload_may_not_change_what_the_ledger_survives(tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, ledger=file_ledger(tmp_path)) as front:
            other = front.text(ledger={"durability": "power"})
            assert front.app.fixed(build.settings(other, {})) == ["durability"]

    run("asyncio", steps())

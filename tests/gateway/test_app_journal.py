"""The whole gateway on a ledger in a file: nothing is sent before it is written, and the next life knows of the last."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from app_scene import LOOPS, chat, first_event, run, scene

from headworks.ledgers.journal_rows import Run, decode


def file_ledger(directory: Path, **more: Any) -> dict[str, Any]:
    return {"url": f"sqlite:{directory}/ledger.db", **more}


def written(directory: Path) -> list[Run]:
    """What stands in the journal, as another process sees it."""
    connection = sqlite3.connect(directory / "ledger.db")
    rows = connection.execute("SELECT runs FROM journal ORDER BY number").fetchall()
    connection.close()
    return [run for (row,) in rows for run in decode(row)]


@pytest.mark.parametrize("loop", LOOPS)
def test_A9_whatever_is_inside_the_engine_had_been_written_before(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(ledger=file_ledger(tmp_path)) as front:
            seen = []

            async def ask(number: int) -> None:
                answer = await front.ask(chat(tokens=4 + number % 3))
                assert answer.status == 200
                seen.append(number)

            asks = [asyncio.create_task(ask(number)) for number in range(24)]
            inside = 0
            while not all(task.done() for task in asks):
                await asyncio.sleep(0)
                for engine in front.engines:
                    names = set(engine.held())
                    if names:
                        on_disk = {getattr(one, "execution", "") for run in written(tmp_path) for one in run.commands}
                        assert names <= on_disk, "sent before it was written"
                        inside = max(inside, len(names))
            await asyncio.gather(*asks)
            assert len(seen) == 24
            assert inside > 1, "nothing was ever inside: the test has seen nothing"

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
def test_A9_what_comes_in_one_turn_of_the_loop_is_one_row(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(ledger=file_ledger(tmp_path)) as front:
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
        from headworks.config import build

        async with scene(ledger=file_ledger(tmp_path)) as front:
            other = front.text(ledger={"durability": "power"})
            assert front.app.fixed(build.settings(other, {})) == ["durability"]

    run("asyncio", steps())

"""2,560 hostile bodies, on every route that takes one: no 5xx of ours, no hang, no secret told (H3, I37)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest
from app_scene import ENVIRONMENT, PATIENT, Scene, call, fake_engine, run, scene
from hostile_bodies import CANARY, GOOD, bodies
from http_port import Answer

from headworks.gateway.admit import ADMIT_PATH, OPEN_PATH
from headworks.gateway.dialects.table import DIALECTS

SEEDS = range(8)
BODIES = 320
CLIENTS = 6
ANSWER_S_MAX = 8.0
EXPECTED = {200, 400, 404, 413, 422, 429}
"""429: a body that asks for more than there is."""
PAGES = ("/metrics", "/readyz", "/admin/snapshot", "/admin/ledger", "/admin/orders", "/admin/replicas")
SESSIONS = {"sessions": {"idle_s": 0.2}}
"""Those that were opened end by themselves before the scene does."""


def test_H3_every_route_that_takes_a_body_has_hostile_ones() -> None:
    assert set(GOOD) == {*DIALECTS, ADMIT_PATH, OPEN_PATH}
    assert len(SEEDS) * BODIES == 2_560
    assert bodies(3, 50) == bodies(3, 50), "a seed says it all"
    assert len({body for seed in SEEDS for body in bodies(seed, BODIES)}) > 2_000


def test_H3_without_anything_done_to_them_they_are_good() -> None:
    """Else all would be refused at the first look."""

    async def steps() -> None:
        async with scene(fake_engine(speed=20.0), classes=PATIENT, pool=SESSIONS) as s:
            answers = {path: (await s.ask(call(path, body=body))).status for path, body in GOOD.items()}
            assert answers == dict.fromkeys(GOOD, 200)
            await s.until(lambda: s.held("pool:llama") == 0)

    run("uvloop", steps())


@pytest.mark.parametrize("seed", SEEDS)
def test_H3_no_body_breaks_or_tells(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Replay one seed: `pytest "tests/gateway/test_hostile_bodies.py::test_H3_no_body_breaks_or_tells[7]"`."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setitem(ENVIRONMENT, "ACME_KEY", f"{CANARY}-of-acme")
    statuses: Counter[int] = Counter()
    replay = f'pytest "{Path(__file__).name}::test_H3_no_body_breaks_or_tells[{seed}]"'

    async def one(s: Scene, path: str, body: bytes) -> None:
        answer = await asked(s, path, body)
        about = f"{replay}: {path} {body[:300]!r}: {answer.status} {answer.body[:300]!r}"
        assert answer.status in EXPECTED, about
        assert answer.status == 200 or not tells(answer.body), about
        assert not tells(repr(answer.fields).encode()), about
        statuses[answer.status] += 1

    async def client(s: Scene, mine: list[tuple[str, bytes]]) -> None:
        for path, body in mine:
            await one(s, path, body)

    async def steps() -> None:
        engine = fake_engine(speed=20.0, natural_tokens=3)
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}}
        async with scene(engine, classes=PATIENT, pool=SESSIONS, tenants=tenants) as s:
            wrong = await s.ask(call("/v1/completions", f"Authorization: Bearer {CANARY}-wrong", body=GOOD["/v1/completions"]))
            assert (wrong.status, tells(wrong.body)) == (401, False)
            all_bodies = bodies(seed, BODIES)
            await asyncio.gather(*(client(s, all_bodies[first::CLIENTS]) for first in range(CLIENTS)))
            await s.until(lambda: s.held("pool:llama") == 0, 10.0)
            # The gate hears of sessions that ended in the ledger with its next look at it.
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["tokens"] == 0, 10.0)
            await nothing_tells(s)

    run("uvloop", steps(), within_s=60.0)
    said = capfd.readouterr()
    assert not tells((caplog.text + said.out + said.err).encode()), replay
    assert statuses[200] > 5 and statuses[400] > 100, statuses


async def asked(s: Scene, path: str, body: bytes) -> Answer:
    """One request; an answer that breaks off or takes too long is an error."""
    return await asyncio.wait_for(s.ask(call(path, key="ACME_KEY", body=body)), ANSWER_S_MAX)


def tells(text: bytes) -> bool:
    return CANARY.encode() in text


async def nothing_tells(s: Scene) -> None:
    """No page of the admin port, and nothing that is written."""
    for path in PAGES:
        page = await s.admin(path)
        assert page.status_code == 200, path
        assert not tells(page.content), path
    assert s.app.log is not None
    s.app.log.flush()
    no_file_tells(Path(s.texts["log"]["decisions"]))


def no_file_tells(directory: Path) -> None:
    """Decisions, their index and the usage of each tenant."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert not tells(file.read_bytes()), file

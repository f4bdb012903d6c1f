"""A request that one gateway decided about is explained by any other of its ledger (F2, decision 63)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from app_scene import ENVIRONMENT, Scene, chat, get, run, scene
from http_port import Answer

from headworks.cli.main import run as headworks
from headworks.config import build
from headworks.core.types import Owner
from headworks.gateway import other_logs
from headworks.gateway.app import App
from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
DOMAINS = count(1)
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
AUTH = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


@asynccontextmanager
async def gateways(server: servers.Server, *logs: Path | None) -> AsyncIterator[list[Scene]]:
    """The first one writes where scenes do, each further one into such a directory (None: nowhere)."""
    ledger = {"url": server.url, "domain": f"logs{next(DOMAINS)}", "lease_s": 5}
    async with scene(tenants=TENANTS, server={"admin_key": "env:ADMIN"}, ledger=ledger) as one:
        found = [one]
        for number, directory in enumerate(logs, 2):
            config = one.text(log={"decisions": None if directory is None else str(directory)})
            app = App(build.policy(config, number=1), build.settings(config, ENVIRONMENT), name=f"gateway-{number}")
            found.append(Scene(app, one.engines, one.texts))
            await app.start()
        for other in found:
            await other.until(lambda other=other: other.app.obstacles() == [])  # type: ignore[misc]
        try:
            yield found
        finally:
            for other in found[1:]:
                await other.app.stop()


async def explained(s: Scene, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await s.admin(f"/admin/explain/{name}", **AUTH)).json()
    return found


async def own(s: Scene, name: str, key: str) -> Answer:
    return await s.ask(get(f"/v1/headworks/explain/{name}", f"Authorization: Bearer {ENVIRONMENT[key]}"))


def test_F2_a_request_is_explained_by_any_gateway(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path / "two", tmp_path / "three") as (one, two, three):
            asked = chat("Idempotency-Key: k1", "X-Request-Id: mine", key="ACME_KEY")
            assert (await two.ask(asked)).status == 200
            there = await explained(two, "k1")
            assert [line["kind"] for line in there["records"]] == ["decision", "outcome"]
            for s in (one, three):
                for name in ("k1", "mine", there["records"][0]["record"]["id"]):
                    found = await explained(s, name)
                    assert (found["story"], found["records"]) == (there["story"], there["records"]), name
                    assert found["others"] == {"gateways": 2, "told": 2, "missing": {}}
            assert one.app.log is not None and one.app.log.find("k1") == [], "it had to be asked for"

    run("uvloop", steps())


def test_F2_a_tenant_is_told_its_own_by_any_gateway_and_nobody_elses(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path) as (one, two):
            for key in ("ACME_KEY", "BATCHCO_KEY"):
                assert (await two.ask(chat("Idempotency-Key: shared", key=key))).status == 200
            answer = await own(one, "shared", "ACME_KEY")
            found = answer.json()
            assert {line["record"]["key"][0] for line in found["records"]} == {"acme"}
            assert all("gateway" not in line["record"] and "execution" not in line["record"] for line in found["records"])
            assert found["others"] == {"gateways": 1, "told": 1}
            theirs = (await own(one, "shared", "BATCHCO_KEY")).json()["records"][0]["record"]["id"]
            assert (await own(one, theirs, "ACME_KEY")).status == 404
            assert (await explained(one, theirs))["records"] != []

    run("uvloop", steps())


def test_F2_a_key_that_was_used_at_two_gateways_is_one_story(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path) as (one, two):
            for s in (one, two):
                await s.ask(chat("Idempotency-Key: again", f"X-Request-Id: at-{id(s)}", key="ACME_KEY"))
            for name in ("again", f"at-{id(one)}"):
                found = await explained(two, name)
                wrote = {line["record"]["gateway"] for line in found["records"] if line["kind"] == "decision"}
                assert wrote == {"gateway", "gateway-2"}, name

    run("uvloop", steps())


def test_F2_workers_that_share_a_directory_read_it_once(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server) as (one,):
            assert one.app.log is not None
            config = one.text()
            app = App(build.policy(config, number=1), build.settings(config, ENVIRONMENT), name="gateway-2")
            two = Scene(app, one.engines, one.texts)
            await app.start()
            await two.until(lambda: two.app.obstacles() == [])
            assert (await two.ask(chat("Idempotency-Key: k1", key="ACME_KEY"))).status == 200
            two.app.explanations._others._log = Flushing(two.app.log)  # whoever looks into it fails
            found = await explained(one, "k1")  # the other one puts on the disk what it has not yet
            assert [line["kind"] for line in found["records"]] == ["decision", "outcome"]
            assert found["others"] == {"gateways": 1, "told": 1, "missing": {}}
            await two.app.stop()

    run("uvloop", steps())


def test_F2_who_cannot_tell_is_named_and_nobody_waits_for_long(
    server: servers.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path, None) as (one, two, three):
            assert (await one.ask(chat("Idempotency-Key: k1", key="ACME_KEY"))).status == 200
            stuck = two.app.explanations._others
            monkeypatch.setattr(stuck, "_answer", lambda question: asyncio.sleep(3600))
            began_s = time.monotonic()
            found = await explained(one, "k1")
            assert time.monotonic() - began_s < 2 * other_logs.ANSWER_S_MAX + 0.5
            assert [line["kind"] for line in found["records"]] == ["decision", "outcome"]
            names = [f"{s.app.ledger._owner.gateway} ({s.app.ledger._owner.boot})" for s in (two, three)]
            assert found["others"] == {
                "gateways": 2,
                "told": 0,
                "missing": {names[0]: "did not answer within 1 s", names[1]: "keeps no decision log"},
            }
            monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])
            host, port = one.app.admin_address[:2]
            words = ["explain", "k1", "--admin", f"http://{host}:{port}"]
            assert await asyncio.to_thread(headworks, words) == 0
            assert f"what {names[0]} knows is missing: it did not answer within 1 s" in capsys.readouterr().err
            for task in list(stuck._answering):
                task.cancel()

    run("uvloop", steps())


def test_F2_a_gateway_that_hears_no_questions_is_missing_at_once(server: servers.Server, tmp_path: Path) -> None:
    """One of an older version, or one whose connection is just gone: by the ledger it lives, and it hears nothing."""

    async def steps() -> None:
        async with gateways(server, tmp_path) as (one, two):
            two.app._shared._ears.close()
            two.app._shared._task.cancel()
            await one.until(lambda: two.app._shared._ears.is_over)
            await asyncio.sleep(0.05)
            began_s = time.monotonic()
            found = await explained(one, "k1")
            assert time.monotonic() - began_s < other_logs.ANSWER_S_MAX
            assert (found["others"]["gateways"], found["others"]["told"]) == (1, 0)

    run("uvloop", steps())


def test_F2_without_the_store_what_is_known_here_is_told(server: servers.Server) -> None:
    async def steps() -> None:
        async with gateways(server) as (one,):
            assert (await one.ask(chat("Idempotency-Key: k1", key="ACME_KEY"))).status == 200
            await one.settled()
            asked = one.app._shared.ask

            async def nobody(*words: Any) -> object:
                raise other_logs.LedgerError("The ledger does not answer")

            one.app._shared.ask = nobody
            found = await explained(one, "k1")
            one.app._shared.ask = asked
            assert [line["kind"] for line in found["records"]] == ["decision", "outcome"]
            assert found["others"]["missing"] == {"all others": "The ledger does not answer"}

    run("uvloop", steps())


def test_F2_of_too_many_records_the_newest_are_sent_and_it_is_said(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path) as (one, two):
            two.app.explanations._others._log = Full()
            living, (told,) = await one.app.explanations._others.ask([("k1", None)])
            assert living == [two.app.ledger._owner]
            assert (told.lacks, told.lines[-1]["utc"]) == ("has more records than fit into an answer", "999")
            size_bytes = sum(len(json.dumps(line, separators=(",", ":"))) for line in told.lines)
            assert 0 < other_logs.ANSWER_BYTES_MAX - size_bytes < 1_100

    run("uvloop", steps())


class Flushing:
    """A log that can only be put on the disk."""

    def __init__(self, log: Any) -> None:
        self.flush = log.flush


class Full:
    """A log in which everything is found."""

    def find(self, name: str, tenant: str | None) -> list[dict[str, Any]]:
        return [{"utc": str(number), "record": "x" * 1_000} for number in range(1_000)]


@pytest.mark.parametrize("said", [b"", b"{}", b"\xff", b"[1]", b'{"id": "a", "asker": ["g"], "names": [], "place": ""}'])
def test_F2_what_others_say_in_other_words_is_let_be(said: bytes) -> None:
    assert other_logs._read(said, other_logs.Question) is None
    assert other_logs._read(said, other_logs.Told) is None


def test_F2_more_questions_than_may_wait_are_told_so(server: servers.Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with gateways(server, tmp_path) as (one, two):
            others = one.app.explanations._others
            waiting = [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(other_logs.WAITING_MAX)]
            two.app.explanations._others._answering.update(waiting)
            _, (told,) = await others.ask([("k1", None)])
            assert told == other_logs.Told(told.id, Owner(*two.app.ledger._owner), [], "has too many look-ups under way")
            for task in waiting:
                task.cancel()

    run("uvloop", steps())

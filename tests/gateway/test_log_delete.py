"""A tenant taken out of a decision log: nothing of it is found by any means, and all others are as they were (F2)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_scene import ENVIRONMENT, Scene, chat, run, scene

from headworks.cli.main import run as headworks
from headworks.gateway import log_index
from headworks.gateway.decisions import find, paths
from headworks.gateway.log_delete import delete
from headworks.logs import reading

TENANTS = {
    "acme": {"keys": ["env:ACME_KEY"], "quota": {"period": "day", "tokens": 100_000}},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "classes": ["interactive", "bulk"]},
}
WITH_KEY = {"admin_key": "env:ADMIN"}
AUTH = {"authorization": f"Bearer {ENVIRONMENT['ADMIN']}"}


async def traffic(s: Scene, *names: str) -> None:
    for name in names:
        for key, tenant in (("ACME_KEY", "acme"), ("BATCHCO_KEY", "batchco")):
            fields = (f"Idempotency-Key: {tenant}-{name}", f"X-Request-Id: client-{tenant}-{name}")
            assert (await s.ask(chat(*fields, key=key))).status == 200


async def ask_delete(s: Scene, tenant: str) -> dict[str, Any]:
    host, port = s.app.admin_address[:2]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, headers=AUTH) as client:
        answer = await client.post("/admin/log/delete", json={"tenant": tenant, "reason": "it asked us to"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def grep(directory: Path, text: str) -> str:
    """Whatever holds the text in any file, by another program."""
    return subprocess.run(["grep", "-rl", "-a", text, str(directory)], capture_output=True, text=True).stdout


def test_F2_a_running_gateway_takes_a_tenant_out_of_every_file_and_goes_on(tmp_path: Path) -> None:
    async def steps() -> None:
        log = {"decisions": str(tmp_path / "log"), "rotate_bytes": 4_000}
        async with scene(tenants=TENANTS, server=WITH_KEY, log=log) as s:
            assert s.app.log is not None
            s.app.log._closing.set()  # what is written is written here, at no moment of its own
            for name in ("one", "two", "three"):  # each in lines of its own, so that a file is full and another begun
                await traffic(s, name)
                await s.settled()
                s.app.log.flush()
            before = find(tmp_path / "log", "batchco-two")
            executions = [line["record"].get("execution") for line in find(tmp_path / "log", "acme-one")]
            assert executions and grep(tmp_path / "log", "acme-one") and len(paths(tmp_path / "log")) > 1
            found = await ask_delete(s, "acme")
            assert found["busy"] == [] and found["files"] >= 1 and found["lines"] > 9
            for text in ("acme", "client-acme", *filter(None, executions)):
                assert grep(tmp_path / "log", text) == "", text
            assert find(tmp_path / "log", "acme-one") == [] == find(tmp_path / "log", "client-acme-one")
            assert find(tmp_path / "log", "batchco-two") == before != []
            s.app.log.flush()
            heads = [json.loads(line) for line in paths(tmp_path / "log")[-1].read_text().splitlines()]
            forms = [line["record"]["tenant"] for line in heads if isinstance(line, dict) and line["kind"] == "form"]
            assert forms and set(forms) == {"batchco"}, "nor is it at the head of what is written next"
            (told,) = [one for one in s.everything("declared") if one["verb"] == "delete"]
            assert (told["actor"], told["subject"], told["reason"]) == ("server.admin_key", "acme", "it asked us to")
            await traffic(s, "four")
            await s.settled()
            s.app.log.flush()
            assert len(find(tmp_path / "log", "acme-four")) >= 2, "what comes later is written and read as ever"
            assert len(find(tmp_path / "log", "batchco-four")) >= 2
            assert list((tmp_path / "log").glob("*.part")) == []

    run("uvloop", steps())


def test_F2_a_file_that_is_being_written_is_left_to_its_gateway(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def steps() -> None:
        monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])
        async with scene(tenants=TENANTS, server=WITH_KEY, log={"decisions": str(tmp_path / "log")}) as s:
            await traffic(s, "one")
            await s.settled()
            assert s.app.log is not None
            s.app.log.flush()
            words = ["log", "delete", "acme", "--reason", "why"]
            assert await asyncio.to_thread(headworks, [*words, "--log", str(tmp_path / "log")]) == 1
            assert "is being written: ask its gateway" in capsys.readouterr().err
            assert grep(tmp_path / "log", "acme-one")
            host, port = s.app.admin_address[:2]
            assert await asyncio.to_thread(headworks, [*words, "--admin", f"http://{host}:{port}"]) == 0
            assert "were taken out or changed" in capsys.readouterr().out
            assert not grep(tmp_path / "log", "acme-one")
        assert headworks(["log", "delete", "batchco", "--reason", "why", "--log", str(tmp_path / "log"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["lines"] > 0
        assert grep(tmp_path / "log", "batchco") == ""
        assert headworks(["log", "list", "--log", str(tmp_path / "log")]) == 0
        assert "decisions-" in capsys.readouterr().out
        assert headworks(["log", "delete", "acme", "--reason", "why", "--log", str(tmp_path / "none")]) == 2

    run("uvloop", steps())


def write(path: Path, tenants: int, requests: int) -> None:
    """A file of lines as earlier versions wrote them, of some tenants in turn."""
    lines = []
    for number in range(requests):
        key = [f"tenant-{number % tenants}", f"key-{number}"]
        record = {"id": f"req_{number}", "key": key, "execution": f"x{number}", "outcome": "completed"}
        line = {"kind": "outcome", "utc": "2026-11-30T00:00:00.000000Z", "monotonic_s": 1.0, "record": record}
        lines.append(json.dumps(line, separators=(",", ":")))
    path.write_text("\n".join(lines) + '\n{"kind":"outcome","utc":"2026-11-30T00:00:0')


def test_F2_the_index_is_made_again_and_the_files_age_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "UNCOVERED_BYTES_MIN", 1_000)
    path = tmp_path / "decisions-20261130T000000-1-000001.jsonl"
    write(path, 3, 300)
    log_index.make(path)
    before = path.stat().st_mtime_ns
    found = delete(tmp_path, "tenant-1")
    assert (found.files, found.lines, found.busy) == (1, 101, []), "and half a line, of which nobody knows whose it was"
    assert path.stat().st_mtime_ns == before
    offsets, covered_bytes = log_index.look_up(path, "key-2")
    assert len(offsets) == 1 and covered_bytes == path.stat().st_size
    assert find(tmp_path, "key-1") == [] and len(find(tmp_path, "key-2")) == 1
    assert sum(1 for _ in reading.lines(path)) == 200
    again = delete(tmp_path, "tenant-1")
    assert (again.files, again.lines) == (0, 0)


def test_F2_an_index_that_was_begun_before_is_not_put_beside_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is asked to delete begins another file, and has the last one indexed at the same time."""
    path = tmp_path / "decisions-20261130T000000-1-000001.jsonl"
    write(path, 3, 300)
    entries = log_index._entries

    def meanwhile(read: Path) -> tuple[list[int], int]:
        found = entries(read)
        assert delete(tmp_path, "tenant-1").files == 1
        return found

    monkeypatch.setattr(log_index, "_entries", meanwhile)
    log_index.make(path)
    assert len(find(tmp_path, "key-2")) == 1
    assert not log_index.index_of(path).exists()


def test_F2_a_file_that_expires_meanwhile_keeps_nothing_of_the_others(tmp_path: Path) -> None:
    """The gateway begins another file because it was asked, and the ones that are too old go just then."""
    (tmp_path / "decisions-20261129T000000-1-000001.jsonl").symlink_to(tmp_path / "gone")
    write(tmp_path / "decisions-20261130T000000-1-000001.jsonl", 3, 30)
    found = delete(tmp_path, "tenant-1")
    assert (found.files, found.lines, found.busy) == (1, 11, [])


def test_F2_a_record_is_not_taken_apart_to_see_whose_it_is_and_one_that_is_cut_goes(tmp_path: Path) -> None:
    """Its form says so; of what a crash has cut nobody can be sure."""
    head = b'{"kind":"form","utc":"","monotonic_s":0,"record":{"number":%d,"tenant":"%b"}}\n'
    kept = [b'["outcome",2,"b1",no json any more]\n', b'["turned_away",2,"b2"]\n']
    gone = [b'["decision",1,"a1"]\n', b'["turned_away",1,"a2"]\n', b'["decision",2,"b3\n', b'["decision",9,"nobodys"]\n']
    path = tmp_path / "decisions-20261130T000000-1-000.jsonl"
    path.write_bytes(b"".join([head % (1, b"acme"), head % (2, b"batchco"), *kept, *gone]))
    assert delete(tmp_path, "acme").lines == 1 + len(gone)
    assert path.read_bytes() == b"".join([head % (2, b"batchco"), *kept])

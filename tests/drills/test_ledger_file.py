"""The ledger in a file, with real processes: kills, a second owner, a full disk, backup and restore."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from kills import drill, recovered_copy
from processes import ask, configuration, engine, gateway, starting, stream, until


def file_ledger(directory: Path, **more: Any) -> dict[str, Any]:
    return {"url": f"sqlite:{directory}/ledger.db", "lease_s": 2, **more}


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headworks.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("seed", [1])
def test_A9_kill_at_random_instants_under_load(seed: int, tmp_path: Path) -> None:
    """A few of them; more with: python tests/drills/kills.py --times 50 --seed SEED"""
    seen = drill(tmp_path, times=4, seed=seed)
    assert seen.faults == []
    assert seen.charged > 0, "nothing ran when it was killed: the drill has seen nothing"
    assert seen.settled == 1


def test_A7_streams_of_a_killed_gateway_are_charged_until_the_engine_shows_it_then_exactly_zero(tmp_path: Path) -> None:
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, ledger=file_ledger(tmp_path))
        with gateway("--config", str(file)) as front, httpx.Client(trust_env=False, timeout=10) as client:
            for _ in range(8):
                body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3000, "stream": True}
                request = client.build_request("POST", front.url + "/v1/chat/completions", json=body)
                client.send(request, stream=True)
            until(lambda: upstream.inside() == 8)
            until(lambda: all(one["seen"] for one in front.get("/admin/ledger").json()["records"]))
            assert front.charged() == 8
            front.send(signal.SIGKILL)
            front.ended()
        left = recovered_copy(tmp_path / "ledger.db").charged()
        assert [record.state for record in left] == ["ORPHANED"] * 8
        with starting("--config", str(file)) as child:
            assert child.stdout is not None
            admin = json.loads(child.stdout.readline())["admin"]
            until(lambda: httpx.get(admin + "/admin/ledger").json()["charged"] == 0)
            assert upstream.inside() == 0
            until(lambda: httpx.get(admin + "/readyz").status_code == 200)
            assert httpx.get(admin + "/admin/ledger/audit").json()["differences"] == []
            page = httpx.get(admin + "/metrics").text
            assert 'reservations{pool="llama"' not in page.replace("headworks_", "")


def test_A9_a_second_gateway_on_the_file_ends_with_a_sentence_and_the_word_Valkey(tmp_path: Path) -> None:
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, ledger=file_ledger(tmp_path))
        with gateway("--config", str(file)) as front:
            second = verb("serve", "--config", str(file), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
            assert second.returncode == 2
            assert f"in use by process {front.child.pid}" in second.stderr
            assert "Valkey" in second.stderr
            assert "Traceback" not in second.stderr
            assert ask(front.url).status_code == 200


def test_A9_on_a_disk_that_takes_nothing_more_streams_run_and_nothing_new_is_admitted_until_it_does(tmp_path: Path) -> None:
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, ledger=file_ledger(tmp_path, lease_s=60))
        with gateway("--config", str(file)) as front:
            with stream(front.url, tokens=300) as lines:
                next(lines)
                size = os.path.getsize(tmp_path / "ledger.db-wal")
                resource.prlimit(front.child.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
                until(lambda: (refused := ask(front.url)).status_code == 503 and refused)
                refused = ask(front.url)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
                assert "does not answer" in front.get("/readyz").json()["obstacles"][0]
                assert list(lines)[-1] == "data: [DONE]"
            until(lambda: upstream.inside() == 0)
            resource.prlimit(front.child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            until(lambda: ask(front.url).status_code == 200)
            until(lambda: front.charged() == 0)
            assert front.audit() == []


def test_H4_a_backup_of_a_running_gateway_is_restored_in_its_place_and_has_every_table(tmp_path: Path) -> None:
    saved = tmp_path / "saved.db"
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, ledger=file_ledger(tmp_path))
        with gateway("--config", str(file)) as front:
            with sqlite3.connect(tmp_path / "ledger.db") as others:
                others.execute("CREATE TABLE others (id TEXT)")
                others.execute("INSERT INTO others VALUES ('k1')")
            others.close()
            with stream(front.url, tokens=2000) as lines:
                next(lines)
                made = verb("ledger", "backup", str(saved), "--config", str(file), "--json")
                assert made.returncode == 0, made.stderr
                kept = json.loads(made.stdout)
                assert (kept["charged"], list(kept["tokens"])) == (1, ["llama"])
                refused = verb("ledger", "restore", str(saved), "--config", str(file))
                assert refused.returncode == 2
                assert "in use by process" in refused.stderr
            assert verb("ledger", "backup", str(saved), "--config", str(file)).returncode == 2, "it exists"
            front.send(signal.SIGTERM)
            assert front.ended() == 0
        put = verb("ledger", "restore", str(saved), "--config", str(file))
        assert put.returncode == 0, put.stderr
        assert "1 charged" in put.stdout
        assert (tmp_path / "ledger.db.before-restore").exists()
        with gateway("--config", str(file)) as front:
            until(lambda: front.charged() == 0)
            assert ask(front.url).status_code == 200
            with sqlite3.connect(tmp_path / "ledger.db") as others:
                assert others.execute("SELECT id FROM others").fetchall() == [("k1",)]
            others.close()


def test_H4_what_is_no_backup_is_not_restored_and_nothing_changes(tmp_path: Path) -> None:
    ledger, other = tmp_path / "ledger.db", tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    for source, said in ((other, "not a ledger"), (tmp_path / "missing.db", "There is no ledger")):
        put = verb("ledger", "restore", str(source), "--ledger", str(ledger))
        assert put.returncode == 2
        assert said in put.stderr
        assert not ledger.exists()
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_A9_without_a_file_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    file = configuration(tmp_path, "http://127.0.0.1:1")
    made = verb("ledger", "backup", str(tmp_path / "x.db"), "--config", str(file))
    assert made.returncode == 2
    assert "the ledger of" in made.stderr and "is memory" in made.stderr

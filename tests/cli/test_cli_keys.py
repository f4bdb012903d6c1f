"""`headworks keys`, on a gateway that runs in this process and on a file that nobody serves from (H2)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from app_scene import ENVIRONMENT, Scene, chat, run, scene

from headworks.cli.main import run as headworks
from headworks.ledgers.keys import KeyStore

Capture = pytest.CaptureFixture[str]
TENANTS: dict[str, Any] = {"acme": {"classes": ["interactive", "bulk"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a configuration, where no gateway runs."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HEADWORKS_ADMIN_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def write(directory: Path, **sections: Any) -> Path:
    given: dict[str, Any] = {
        "server": {"admin": "127.0.0.1:1"},
        "ledger": {"url": "sqlite:ledger.db"},
        "tenants": TENANTS,
        "pools": {"llama": {"replicas": [{"url": "http://127.0.0.1:2", "engine": "vllm"}]}},
    }
    file = directory / "headworks.yaml"
    file.write_text(json.dumps(given | sections))
    return file


def kept(directory: Path) -> list[Any]:
    store = KeyStore(str(directory / "ledger.db"))
    try:
        return store.kept()
    finally:
        store.close()


def test_H2_add_prints_the_key_alone_and_once(place: Path, capsys: Capture) -> None:
    assert headworks(["keys", "add", "--tenant", "acme", "--class", "bulk", "--expires-days", "30"]) == 0
    said = capsys.readouterr()
    (key,) = kept(place)
    assert said.out.startswith("hw-")
    assert len(said.out) == len("hw-") + 43 + 1
    assert f"key {key.id} of tenant acme, bulk; all models, until " in said.err
    assert "it is not shown again" in said.err
    assert (key.classes, key.lifetime_s) == (("bulk",), 30 * 86_400.0)
    assert headworks(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert key.id in listed
    assert "tenant acme" in listed
    assert listed.endswith(f"1 stored keys, 1 active, in {os.path.realpath('ledger.db')}\n")
    assert said.out.strip() not in listed


def test_H2_json_has_everything_but_hashes(place: Path, capsys: Capture) -> None:
    assert headworks(["keys", "add", "--tenant", "acme", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert headworks(["keys", "rotate", made["id"], "--grace-hours", "0", "--json"]) == 0
    new = json.loads(capsys.readouterr().out)
    assert new["replaces"] == made["id"]
    assert headworks(["keys", "revoke", new["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "revoked"
    assert headworks(["keys", "list", "--tenant", "acme", "--json"]) == 0
    text = capsys.readouterr().out
    assert [key["state"] for key in json.loads(text)["keys"]] == ["revoked", "revoked"]
    for key in kept(place):
        assert key.hash.hex() not in text
    assert new["key"] not in text


def test_H2_what_cannot_be_done_is_1_and_says_why(place: Path, capsys: Capture) -> None:
    for words, said in (
        (["add", "--tenant", "ghost"], "There is no tenant 'ghost' in the configuration; there are acme, batchco."),
        (["add"], "There is no tenant '' in the configuration"),
        (["add", "--tenant", "acme", "--class", "batch"], "may not use the class 'batch'"),
        (["add", "--tenant", "acme", "--for-admin"], "A key for the admin port has no tenant"),
        (["add", "--tenant", "acme", "--expires-days", "0"], "Expected `float` > 0"),
        (["rotate", "no-such"], "There is no key 'no-such'"),
        (["revoke", "../../x"], "There is no key '../../x'"),
    ):
        assert headworks(["keys", *words]) == 1, words
        assert said in capsys.readouterr().err
    assert not (place / "ledger.db").exists()


def test_H2_a_key_given_as_an_argument_is_repeated_nowhere(place: Path, capsys: Capture) -> None:
    for verb in ("rotate", "revoke"):
        assert headworks(["keys", verb, "hw-0123456789"]) == 1
        said = capsys.readouterr()
        assert "that is a key itself" in said.err
        assert "0123456789" not in said.out + said.err


def test_H2_what_could_not_run_is_2(place: Path, capsys: Capture) -> None:
    assert headworks(["keys", "list", "--config", "nothing.yaml"]) == 2
    assert "nothing.yaml: cannot be read" in capsys.readouterr().err
    assert headworks(["keys", "list", "--admin", "http://127.0.0.1:1"]) == 2
    assert "Is a gateway running?" in capsys.readouterr().err
    write(place, ledger={"url": "memory:"})
    assert headworks(["keys", "add", "--tenant", "acme"]) == 2
    assert "set ledger.url to sqlite:PATH and restart" in capsys.readouterr().err
    write(place)
    (place / "ledger.db").write_bytes(b"no database" * 1_000)
    assert headworks(["keys", "list"]) == 2
    assert "file is not a database" in capsys.readouterr().err


def test_H2_a_given_pepper_is_used_and_makes_no_file(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEPPER", "p" * 32)
    write(place, ledger={"url": "sqlite:ledger.db", "keys_secret": "env:PEPPER"})
    assert headworks(["keys", "add", "--tenant", "acme"]) == 0
    assert not (place / "ledger.db.pepper").exists()
    monkeypatch.setenv("PEPPER", "q" * 32)
    assert headworks(["keys", "add", "--tenant", "acme"]) == 2
    assert "another pepper than that in ledger.keys_secret" in capsys.readouterr().err
    monkeypatch.setenv("PEPPER", "short")
    assert headworks(["check"]) == 1
    assert "the secret in PEPPER must have at least 32 characters" in capsys.readouterr().out


# a gateway that runs


async def verb(*words: str) -> int:
    """A verb in a thread, as another process would ask."""
    return await asyncio.to_thread(headworks, ["keys", *words])


def of(s: Scene, directory: Path, **server: str) -> str:
    """The file that this gateway would have been started with."""
    host, port = s.app.admin_address[:2]
    return str(write(directory, server={"admin": f"{host}:{port}", **server}, ledger=s.texts["ledger"]))


def key_of(capsys: Capture) -> str:
    return capsys.readouterr().out.strip()


async def status(s: Scene, key: str) -> int:
    return (await s.ask(chat(f"Authorization: Bearer {key}"))).status


def test_H2_with_an_admin_key_the_gateway_is_asked_and_knows_at_once(place: Path, capsys: Capture) -> None:
    async def steps() -> None:
        ledger = {"url": f"sqlite:{place / 'ledger.db'}"}
        async with scene(tenants=TENANTS, server={"admin_key": "env:ADMIN"}, ledger=ledger) as s:
            file = of(s, place, admin_key="env:ADMIN")
            assert await verb("add", "--tenant", "acme", "--config", file) == 0
            key = key_of(capsys)
            assert await status(s, key) == 200
            (found,) = kept(place)
            assert await verb("rotate", found.id, "--grace-hours", "0", "--config", file) == 0
            new = key_of(capsys)
            assert (await status(s, key), await status(s, new)) == (401, 200)
            assert await verb("add", "--tenant", "ghost", "--config", file) == 1
            assert "There is no tenant 'ghost'" in capsys.readouterr().err
            assert await verb("revoke", "a/b", "--config", file) == 1
            assert await verb("list", "--config", file) == 0
            assert "2 stored keys, 1 active" in capsys.readouterr().out

    run("uvloop", steps())


def test_H2_another_gateway_behind_the_same_address_is_not_written_to(place: Path, capsys: Capture) -> None:
    async def steps() -> None:
        ledger = {"url": f"sqlite:{place / 'theirs.db'}"}
        async with scene(tenants=TENANTS, server={"admin_key": "env:ADMIN"}, ledger=ledger) as s:
            host, port = s.app.admin_address[:2]
            file = write(place, server={"admin": f"{host}:{port}", "admin_key": "env:ADMIN"})
            assert await verb("add", "--tenant", "acme", "--config", str(file)) == 2
            assert f"theirs.db, not in {place / 'ledger.db'}; say --admin URL" in capsys.readouterr().err
            assert (await s.app.key_watch.desk.do("list")).body["keys"] == []

    run("uvloop", steps())


def test_H2_without_an_admin_key_the_files_owner_is_asked_and_the_gateway_follows(
    place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, ledger={"url": f"sqlite:{place / 'ledger.db'}"}) as s:
            file = of(s, place)
            assert await verb("add", "--tenant", "acme", "--config", file) == 0
            key = key_of(capsys)
            await s.until(lambda: len(s.app.key_watch.clients) == 3)
            assert await status(s, key) == 200
            host, port = s.app.admin_address[:2]
            there = ("--admin", f"http://{host}:{port}")
            assert await verb("add", "--tenant", "acme", *there) == 2
            assert "Keys are changed over this port only with an admin key" in capsys.readouterr().err
            assert await verb("add", "--for-admin", "--config", file) == 0
            admin = key_of(capsys)
            await s.until(lambda: s.app.key_watch.admin_exists)
            assert await verb("list", *there) == 2
            assert "wants its admin key: set HEADWORKS_ADMIN_KEY" in capsys.readouterr().err
            monkeypatch.setenv("HEADWORKS_ADMIN_KEY", admin)
            assert await verb("list", *there) == 0
            assert await verb("add", "--tenant", "acme", *there) == 0
            assert await status(s, key_of(capsys).splitlines()[-1]) == 200

    run("uvloop", steps())


# what check says


def test_check_knows_stored_keys(place: Path, capsys: Capture) -> None:
    def warnings() -> list[str]:
        assert headworks(["check", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["enforced"]["tenants"]["acme"]["keys"] == sum(key.state(0) == "active" for key in kept(place))
        return [one["text"] for one in found["warnings"] if "key" in one["text"]]

    no_key = "no key stands here; unless one is stored (headworks keys add), nobody can ask as this tenant"
    assert warnings() == [no_key]
    assert not (place / "ledger.db").exists(), "check makes nothing"
    assert headworks(["keys", "add", "--tenant", "acme", "--expires-days", "30"]) == 0
    capsys.readouterr()
    assert warnings() == []
    (key,) = kept(place)
    assert headworks(["keys", "rotate", key.id, "--grace-hours", "0", "--expires-days", "3"]) == 0
    capsys.readouterr()
    (name,) = [key.id for key in kept(place) if key.state(0) == "active"]
    assert warnings() == [f"the stored key {name} of tenant acme expires in 3 days; headworks keys rotate {name}"]
    write(place, tenants={"batchco": TENANTS["batchco"]})
    assert headworks(["check"]) == 0
    assert f"the stored key {name} is of tenant acme, which is not in this file: it opens nothing" in capsys.readouterr().out


def test_check_says_that_a_gateway_would_not_start(place: Path, capsys: Capture) -> None:
    assert headworks(["keys", "add", "--tenant", "acme"]) == 0
    (place / "ledger.db.pepper").unlink()
    assert headworks(["check"]) == 0
    assert "a gateway will not start: " in capsys.readouterr().out
    command = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", "headworks.yaml"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "ledger.db.pepper is missing: no key can be known without it" in ended.stderr

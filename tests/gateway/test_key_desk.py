"""What the desk answers about keys, and what a gateway knows of them as time passes (H2)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.gateway.key_desk import KeyDesk
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.keys import Denied, Identity
from headworks.ledgers.keys import FileKeys, KeyStore

TENANTS: dict[str, Any] = {
    "acme": {"classes": ["interactive", "bulk"], "models": ["a", "b"]},
    "batchco": {"keys": ["env:BATCHCO_KEY"]},
}
ENVIRONMENT = {"BATCHCO_KEY": "batchco-key-of-the-test", "PEPPER": "p" * 32}


class Place:
    """A file, a configuration and a clock that stands until it is moved."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 1_000_000.0
        self.file = directory / "ledger.db"
        self.changed = 0
        settings, policy = self.read()
        self.watch = KeyWatch(FileKeys(KeyStore(str(self.file))), settings, policy, self.wall_s, self._count)
        asyncio.run(self.watch.refresh())
        self.changed = 0

    def _count(self) -> None:
        self.changed += 1

    def wall_s(self) -> float:
        return self.now_s

    def read(self, tenants: Any = None) -> tuple[Any, Any]:
        given = {
            "ledger": {"url": f"sqlite:{self.file}"},
            "tenants": TENANTS if tenants is None else tenants,
            "pools": {"llama": {"models": ["a", "b", "c"], "replicas": [{"url": "http://127.0.0.1:1", "engine": "vllm"}]}},
        }
        config = load_bytes(json.dumps(given).encode(), "h.yaml", ENVIRONMENT).config_or_raise()
        return build.settings(config, ENVIRONMENT), build.policy(config, number=1)

    def do(self, verb: str, name: str = "", **asked: Any) -> Any:
        status, body = asyncio.run(self.watch.desk.do(verb, name, asked))
        assert status < 300, body
        return body

    def refused(self, verb: str, name: str = "", **asked: Any) -> tuple[int, str]:
        status, body = asyncio.run(self.watch.desk.do(verb, name, asked))
        assert status >= 400
        assert list(body) == ["error"]
        return status, body["error"]["message"]

    def who(self, key: str) -> Identity | Denied:
        return self.watch.keys.identify(f"Bearer {key}".encode(), "a", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_H2_a_key_is_good_for_its_tenant_from_the_moment_it_is_issued(place: Place) -> None:
    made = place.do("add", tenant="acme", classes=["bulk"], models=["b"], lifetime_s=50.0)
    assert {name: made[name] for name in made if name not in ("id", "key")} == {
        "tenant": "acme",
        "admin": False,
        "classes": ("bulk",),
        "models": ("b",),
        "state": "active",
        "created_s": 1_000_000.0,
        "expires_s": 1_000_050.0,
        "revoked_s": None,
        "replaces": None,
    }
    assert place.who(made["key"]) == Identity("acme", f"acme/{made['id']}", ("bulk",), ("b",))
    assert place.who("batchco-key-of-the-test") == Identity("batchco", "batchco/BATCHCO_KEY")
    assert f"acme/{made['id']}" in place.watch.clients
    assert place.changed == 1


def test_H2_the_list_shows_neither_keys_nor_hashes(place: Place) -> None:
    made = place.do("add", tenant="acme")
    found = place.do("list")
    (kept,) = KeyStore(str(place.file)).kept()
    assert found["store"] == str(place.file.resolve())
    assert [sorted(key) for key in found["keys"]] == [
        ["admin", "classes", "created_s", "expires_s", "id", "models", "revoked_s", "state", "tenant"]
    ]
    text = repr(found)
    assert made["key"] not in text
    assert kept.hash.hex() not in text


def test_H2_a_hash_never_logs_in(place: Place) -> None:
    place.do("add", tenant="acme")
    (kept,) = KeyStore(str(place.file)).kept()
    for text in (kept.hash, kept.hash.hex().encode(), kept.id.encode(), b"hw-" + kept.hash.hex().encode()):
        assert place.watch.keys.identify(b"Bearer " + text, "a", 0.0) == Denied("invalid_api_key")
        assert not place.watch.keys.admin(b"Bearer " + text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tenant": "ghost"}, "There is no tenant 'ghost' in the configuration; there are acme, batchco."),
        ({}, "There is no tenant '' in the configuration; there are acme, batchco."),
        ({"tenant": "acme", "classes": ["batch"]}, "may not use the class 'batch'; it may use interactive, bulk."),
        ({"tenant": "acme", "models": ["c"]}, "may not use the model 'c'; it may use a, b."),
        ({"tenant": "batchco", "models": ["z"]}, "may not use the model 'z'; it may use a, b, c."),
        ({"tenant": "acme", "classes": []}, "Expected `array` of length >= 1"),
        ({"tenant": "acme", "lifetime_s": 0}, "Expected `float` > 0"),
        ({"tenant": "acme", "lifetime_s": 1e12}, "Expected `float` <= "),
        ({"tenant": "acme", "hash": "00"}, "unknown field `hash`"),
        ({"tenant": "acme", "admin": True}, "A key for the admin port has no tenant, classes or models"),
        ({"admin": True, "classes": ["bulk"]}, "A key for the admin port has no tenant, classes or models"),
    ],
)
def test_H2_a_key_that_could_open_nothing_is_not_issued(place: Place, asked: dict[str, Any], said: str) -> None:
    status, sentence = place.refused("add", **asked)
    assert status == 400
    assert said in sentence
    assert not place.file.exists()


def test_H2_a_third_key_is_refused_with_what_helps(place: Place) -> None:
    first = place.do("add", tenant="acme")
    place.do("add", tenant="acme")
    assert place.refused("add", tenant="acme") == (
        409,
        "The tenant acme has 2 active keys, which is the most: revoke one, or rotate one.",
    )
    status, sentence = place.refused("rotate", first["id"])
    assert status == 409
    assert "rotate with a grace of 0, or revoke one" in sentence
    assert place.do("rotate", first["id"], grace_s=0)["replaces"] == first["id"]
    assert place.who(first["key"]) == Denied("invalid_api_key")


def test_H2_a_successor_has_the_same_scopes_and_the_old_one_ends(place: Place) -> None:
    old = place.do("add", tenant="acme", classes=["bulk"], models=["a"], lifetime_s=10_000.0)
    place.now_s += 1_000.0
    new = place.do("rotate", old["id"], grace_s=60.0)
    assert (new["classes"], new["models"], new["expires_s"]) == (("bulk",), ("a",), 1_011_000.0)
    assert isinstance(place.who(old["key"]), Identity)
    place.now_s += 60.0
    asyncio.run(place.watch.refresh())
    assert place.who(old["key"]) == Denied("invalid_api_key")
    assert isinstance(place.who(new["key"]), Identity)
    assert place.refused("rotate", old["id"]) == (409, f"The key {old['id']} is expired: add a new one.")


def test_H2_a_revoked_key_is_nobody_at_once_and_revoking_twice_is_once(place: Place) -> None:
    made = place.do("add", tenant="acme")
    assert isinstance(place.who(made["key"]), Identity)  # it is among the headers that are known again
    assert place.do("revoke", made["id"])["revoked_s"] == 1_000_000.0
    assert place.who(made["key"]) == Denied("invalid_api_key")
    place.now_s += 5.0
    assert place.do("revoke", made["id"])["revoked_s"] == 1_000_000.0
    assert place.refused("revoke", "%")[0] == 404


def test_H2_a_tenant_that_is_not_configured_any_more_is_nobody(place: Place) -> None:
    made = place.do("add", tenant="acme")
    place.watch.change(*place.read({"batchco": TENANTS["batchco"]}))
    assert place.who(made["key"]) == Denied("invalid_api_key")
    assert isinstance(place.who("batchco-key-of-the-test"), Identity)
    place.watch.change(*place.read())
    assert isinstance(place.who(made["key"]), Identity)


def test_H2_admin_keys_and_tenants_keys_are_apart(place: Place) -> None:
    assert not place.watch.admin_exists
    admin, tenant = place.do("add", admin=True), place.do("add", tenant="acme")
    assert place.watch.admin_exists
    assert place.watch.keys.admin(f"Bearer {admin['key']}".encode()) == admin["id"]
    assert place.who(admin["key"]) == Denied("invalid_api_key")
    for key in (tenant["key"], "batchco-key-of-the-test", "", "x" * 1_000_000):
        assert not place.watch.keys.admin(f"Bearer {key}".encode())
    place.do("revoke", admin["id"])
    assert not place.watch.keys.admin(f"Bearer {admin['key']}".encode())
    assert place.watch.admin_exists, "a port that had a key is not opened by the key's end"


def test_H2_keys_that_cannot_be_read_stay_as_they_were_and_that_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    made = place.do("add", tenant="acme")
    asyncio.run(place.watch.close())
    place.file.write_bytes(b"no database" * 1_000)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (place.file.parent / name).unlink(missing_ok=True)
    asyncio.run(place.watch.refresh())
    asyncio.run(place.watch.refresh())
    assert isinstance(place.who(made["key"]), Identity)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["stored keys stay as they are known"]
    place.watch.change(*place.read({"batchco": TENANTS["batchco"]}))
    assert place.who(made["key"]) == Denied("invalid_api_key"), "the configuration is taken all the same"


def test_H2_a_pepper_that_has_gone_keeps_no_revocation_out(place: Place) -> None:
    first, second = place.do("add", tenant="acme"), place.do("add", tenant="acme")
    (place.file.parent / "ledger.db.pepper").unlink()
    place.do("revoke", first["id"])
    assert place.who(first["key"]) == Denied("invalid_api_key")
    assert isinstance(place.who(second["key"]), Identity)
    status, sentence = place.refused("rotate", second["id"])
    assert status == 503
    assert "ledger.db.pepper is missing" in sentence


def test_H2_without_a_file_the_desk_says_what_is_needed(place: Place) -> None:
    status, body = asyncio.run(KeyDesk(None, lambda: place.read()[1], place.wall_s).do("add", "", {"tenant": "acme"}))
    assert status == 501
    assert "set ledger.url to sqlite:PATH and restart" in body["error"]["message"]


def test_H3_a_header_is_known_again_by_all_of_it(place: Place) -> None:
    """A cache of good headers that were looked up by a part of them would let in another (LiteLLM, CVE-2026-35030)."""
    key = place.do("add", tenant="acme")["key"]
    assert isinstance(place.who(key), Identity)
    for number in range(2_000):
        place_in_key = number % len(key)
        other = (
            key[:place_in_key] + chr(33 + (ord(key[place_in_key]) - 33 + 1 + number // len(key)) % 94) + key[place_in_key + 1 :]
        )
        assert not isinstance(place.who(other), Identity)
        assert not isinstance(place.who(key + "x" * (number % 400 + 1)), Identity)
        assert not isinstance(place.who(key[: -1 - number % 40]), Identity)

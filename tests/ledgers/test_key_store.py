"""Stored keys: what is kept, what is not, and whose pepper they are hashed under (H2, reliability sections 9 and 10)."""

from __future__ import annotations

import base64
import hmac
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headworks.ledgers.base import LedgerError
from headworks.ledgers.key_rules import ACTIVE_MAX, StoredKey, Wanted
from headworks.ledgers.keys import VERB_BUSY_S_MAX, KeyStore

ACME = Wanted("acme")
GIVEN = "a-pepper-that-the-operator-gives-to-all"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def issued(store: KeyStore, wanted: Wanted = ACME, now_s: float = 100.0) -> tuple[str, StoredKey]:
    made = store.issue(wanted, now_s)
    assert made is not None
    return made


def states(store: KeyStore, now_s: float) -> dict[str, str]:
    return {key.id: key.state(now_s) for key in store.kept()}


def test_H2_nothing_is_made_before_the_first_key(file: Path) -> None:
    store = KeyStore(str(file))
    assert (store.changes(), store.kept()) == (0, [])
    assert list(file.parent.iterdir()) == []


def test_H2_a_key_has_256_random_bits_and_stands_in_no_file(file: Path) -> None:
    store = KeyStore(str(file))
    secret, kept = issued(store)
    other, _ = issued(store)
    assert secret.startswith("hw-")
    raw = base64.urlsafe_b64decode(secret.removeprefix("hw-") + "=")
    assert len(raw) == 32
    assert other != secret
    written = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert sorted(written) == ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.pepper"]
    for name, content in written.items():
        assert secret.removeprefix("hw-").encode() not in content, name
        assert raw not in content, name
    assert any(kept.hash in content for content in written.values())


def test_H2_what_is_kept_is_an_hmac_under_a_pepper_that_is_not_in_the_file(file: Path) -> None:
    store = KeyStore(str(file))
    secret, kept = issued(store)
    pepper = bytes.fromhex((file.parent / "ledger.db.pepper").read_text().strip())
    assert kept.hash == hmac.new(pepper, secret.encode(), "sha256").digest()
    store.close()
    assert not any(part in path.read_bytes() for part in (pepper, pepper.hex().encode()) for path in [file])
    assert kept.hash.hex() not in repr(kept)
    assert repr(kept.hash) not in repr(kept)


def test_H2_files_are_their_owners_alone(file: Path) -> None:
    issued(KeyStore(str(file)))
    assert {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {
        "ledger.db": 0o600,
        "ledger.db-shm": 0o600,
        "ledger.db-wal": 0o600,
        "ledger.db.pepper": 0o600,
    }


def test_H2_two_active_keys_hold_against_a_race(file: Path) -> None:
    KeyStore(str(file)).issue(Wanted("other"), 100.0)

    def add(_: int) -> bool:
        store = KeyStore(str(file))
        try:
            return store.issue(ACME, 100.0) is not None
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(16))) == ACTIVE_MAX
    assert sum(key.tenant == "acme" for key in KeyStore(str(file)).kept()) == ACTIVE_MAX


def test_H2_the_first_pepper_stays_against_a_race(file: Path) -> None:
    def add(number: int) -> tuple[str, bytes]:
        store = KeyStore(str(file), busy_s_max=VERB_BUSY_S_MAX)
        try:
            secret, kept = issued(store, Wanted(f"tenant-{number}"))
            return secret, kept.hash
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(add, range(8)))
    pepper = KeyStore(str(file)).pepper(100.0)
    assert [hmac.new(pepper, secret.encode(), "sha256").digest() for secret, _ in made] == [hashed for _, hashed in made]
    assert [path.name for path in file.parent.glob("*.pepper*")] == ["ledger.db.pepper"]
    assert {path.name for path in file.parent.iterdir()} <= {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.pepper"}


def test_H2_nobody_ever_works_on_half_of_a_file_that_another_makes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without its log lets in whoever comes: SQLite then cannot begin one, nor waits until it could."""
    seen: list[bytes] = []
    link = os.link

    def watched(made: str, path: str) -> None:
        if path == str(file) and not seen:
            assert not file.exists()
            seen.append(Path(made).read_bytes()[18:20])
            KeyStore(path).issue(ACME, 100.0)  # another is first
        link(made, path)

    monkeypatch.setattr(os, "link", watched)
    KeyStore(str(file))._make()
    assert seen[0] == b"\x02\x02", "with a log, by its header"
    assert [key.tenant for key in KeyStore(str(file)).kept()] == ["acme"], "the first one stays"


def test_A9_other_tables_of_the_file_and_other_connections_are_left_alone(file: Path) -> None:
    ledger = sqlite3.connect(file, isolation_level=None)
    ledger.execute("PRAGMA journal_mode=WAL")
    ledger.execute("CREATE TABLE journal (row INTEGER PRIMARY KEY, commands BLOB)")
    store = KeyStore(str(file))
    for number in range(1, 4):
        issued(store, Wanted(f"tenant-{number}"))
        ledger.execute("BEGIN IMMEDIATE")
        ledger.execute("INSERT INTO journal VALUES (?, ?)", (number, b"x"))
        ledger.execute("COMMIT")
    assert ledger.execute("SELECT count(*) FROM journal").fetchone() == (3,)
    assert len(store.kept()) == 3
    ledger.close()


# the pepper


def test_H2_a_missing_pepper_is_said_and_not_made_anew(file: Path) -> None:
    _, key = issued(KeyStore(str(file)))
    pepper = file.parent / "ledger.db.pepper"
    pepper.rename(file.parent / "elsewhere")
    store = KeyStore(str(file))
    with pytest.raises(LedgerError, match=r"ledger\.db\.pepper is missing: no key can be known without it"):
        store.pepper(100.0)
    with pytest.raises(LedgerError, match="is missing"):
        store.issue(Wanted("batchco"), 100.0)
    assert not pepper.exists()
    store.revoke(key.id, 150.0)
    secret, made = issued(store, ACME, 151.0)
    assert made.hash == hmac.new(store.pepper(100.0), secret.encode(), "sha256").digest()


def test_H2_another_pepper_is_said(file: Path) -> None:
    issued(KeyStore(str(file), GIVEN))
    assert not (file.parent / "ledger.db.pepper").exists()
    assert KeyStore(str(file), GIVEN).pepper(100.0) == GIVEN.encode()
    store = KeyStore(str(file), GIVEN + "x")
    with pytest.raises(LedgerError, match=r"another pepper than that in ledger\.keys_secret"):
        store.pepper(100.0)
    with pytest.raises(LedgerError, match="another pepper"):
        store.issue(ACME, 100.0)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"", 0o600, "is damaged"),
        (b"00" * 31, 0o600, "is damaged"),
        (b"00" * 32 + b"\n00", 0o600, "is damaged"),
        (b"zz" * 32, 0o600, "is damaged"),
        (b"00" * 32, 0o640, "can be read by others than its owner: chmod 600 it"),
        (b"00" * 32, 0o604, "can be read by others than its owner: chmod 600 it"),
    ],
)
def test_H2_a_pepper_that_is_open_or_damaged_is_not_used(file: Path, content: bytes, mode: int, said: str) -> None:
    pepper = file.parent / "ledger.db.pepper"
    pepper.write_bytes(content)
    pepper.chmod(mode)
    with pytest.raises(LedgerError, match=said):
        KeyStore(str(file)).issue(ACME, 100.0)
    assert not file.exists()


def test_H2_a_given_pepper_has_a_length_and_shows_itself_nowhere(file: Path) -> None:
    with pytest.raises(LedgerError, match="fewer than 32 characters") as short:
        KeyStore(str(file), "short-pepper")
    assert "short-pepper" not in str(short.value)
    store = KeyStore(str(file), GIVEN)
    issued(store)
    assert GIVEN not in repr(store) + repr(store.kept())
    store.close()
    assert GIVEN.encode() not in file.read_bytes()


# what else a file can be


def test_A9_what_is_no_database_is_said(file: Path) -> None:
    file.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(LedgerError, match="file is not a database"):
        KeyStore(str(file)).kept()


ODD = ["'", '"; DROP TABLE keys; --', "' OR '1'='1", "%", "_", "\x00", "a\x00b", "ключ", "🔑" * 100, "x" * 1_048_576, "\\", ""]


@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:20]))
def test_H3_no_text_is_taken_for_sql(file: Path, text: str) -> None:
    store = KeyStore(str(file))
    _, key = issued(store)
    store.revoke(text, 150.0)
    assert states(store, 150.0) == {key.id: "active"}
    wanted = Wanted(f"t{text}", (text,), (text,))
    _, odd = issued(store, wanted)
    (found,) = [one for one in KeyStore(str(file)).kept() if one.id == odd.id]
    assert (found.tenant, found.classes, found.models) == (wanted.tenant, wanted.classes, wanted.models)


def test_H2_a_path_with_odd_characters_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "a b?mode=memory#c%20.db"
    issued(KeyStore(str(file)))
    assert file.exists()
    assert len(KeyStore(os.path.relpath(file)).kept()) == 1

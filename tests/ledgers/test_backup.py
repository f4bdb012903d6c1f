"""Copies of a ledger and back (H4): whatever goes wrong, the ledger that was there is still there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headworks.core.commands import Answer, Command, Heartbeat
from headworks.ledgers import backup
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.journal import open_journal
from headworks.testing.suites.ledger_subject import FIRST, reserve


def live(path: Path, count: int) -> None:
    """One life of a gateway on this file, which leaves so many more reservations charged."""
    store = open_journal(str(path), 5_000, 60_000, lambda: 1_000)
    answers: list[Answer] = []
    asked: list[Command] = [Heartbeat(FIRST), *(reserve(f"x{os.urandom(4).hex()}", 1) for _ in range(count))]
    store.apply(asked, answers.extend)
    store.close()


def charged(path: Path) -> int:
    return backup.looked_into(path, path).charged


def test_H4_every_ledger_that_was_moved_aside_is_still_whole(tmp_path: Path) -> None:
    ledger, saved = tmp_path / "l.db", tmp_path / "saved.db"
    live(ledger, 1)
    backup.backup(ledger, saved)
    for more in (2, 3):
        live(ledger, more)
        backup.restore(ledger, saved)
    asides = [tmp_path / "l.db.before-restore", tmp_path / "l.db.before-restore-2"]
    assert [charged(path) for path in (ledger, *asides)] == [1, 1 + 2, 1 + 3]


def test_H4_a_restore_the_disk_does_not_take_leaves_the_ledger_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, saved = tmp_path / "l.db", tmp_path / "saved.db"
    live(ledger, 1)
    backup.backup(ledger, saved)
    live(ledger, 2)
    replace = os.replace

    def refuses(standing: str | Path, to: str | Path) -> None:
        if str(standing).endswith(".partial"):
            raise OSError(28, "No space left on device")
        replace(standing, to)

    monkeypatch.setattr(os, "replace", refuses)
    with pytest.raises(LedgerError, match="No space left"):
        backup.restore(ledger, saved)
    assert charged(ledger) == 3
    assert sorted(path.name for path in tmp_path.iterdir() if "before" in path.name or "partial" in path.name) == []


def test_A9_a_ledger_that_is_reached_by_a_link_stays_one_ledger(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link, saved = tmp_path / "disk" / "l.db", tmp_path / "l.db", tmp_path / "saved.db"
    live(real, 1)
    link.symlink_to(real)
    backup.backup(link, saved)
    live(link, 2)
    backup.restore(link, saved)
    assert link.is_symlink() and charged(real) == charged(link) == 1

"""Stored keys, wherever they are stored: one suite for those in a file and those in a shared store (H2)."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headworks.ledgers.base import LedgerError, open_keys
from headworks.ledgers.key_rules import ACTIVE_MAX, ADMIN, ENDED_KEPT_MAX, Keyring, KeyStoreError, StoredKey, Wanted
from headworks.testing import servers

ACME = Wanted("acme")
PEPPER = "a-pepper-that-the-operator-gives-to-all"
ODD = ["'", '"; DROP TABLE keys; --', "%", "\x00", "a\x00b", "ключ", "🔑" * 100, "x" * 1_048_576, "mark", ""]
DOMAINS = count(1)
Given = TypeVar("Given")


class Ring:
    """One visitor of a store, asked from where no loop runs. Each visit may be another connection."""

    def __init__(self, opened: Callable[[str], Keyring]) -> None:
        self._keys = opened(PEPPER)

    def run(self, ask: Callable[[Keyring], Coroutine[Any, Any, Given]]) -> Given:
        async def visit() -> Given:
            try:
                return await ask(self._keys)
            finally:
                await self._keys.close()

        return asyncio.run(visit())

    def changes(self) -> str:
        return self.run(lambda keys: keys.changes())

    def kept(self) -> list[StoredKey]:
        return self.run(lambda keys: keys.kept())

    def issue(self, wanted: Wanted, now_s: float, *old: Any) -> tuple[str, StoredKey] | None:
        return self.run(lambda keys: keys.issue(wanted, now_s, *old))

    def issued(self, wanted: Wanted = ACME, now_s: float = 100.0) -> StoredKey:
        made = self.issue(wanted, now_s)
        assert made is not None
        return made[1]

    def revoke(self, name: str, now_s: float) -> None:
        self.run(lambda keys: keys.revoke(name, now_s))

    def states(self, now_s: float) -> dict[str, str]:
        return {key.id: key.state(now_s) for key in self.kept()}


Opened = Callable[[str], Keyring]


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server | None]:
    if servers.why_not():
        yield None
        return
    with servers.single() as one:
        yield one


@pytest.fixture(params=["file", "shared"])
def opened(request: pytest.FixtureRequest, server: servers.Server | None, tmp_path: Path) -> Opened:
    """Comes to the same keys with a pepper."""
    if request.param == "shared" and server is None:
        pytest.skip(servers.why_not())
    url = f"sqlite:{tmp_path / 'ledger.db'}" if request.param == "file" or server is None else server.url
    domain = f"keys-{next(DOMAINS)}"

    def one(pepper: str) -> Keyring:
        found = open_keys(url, domain, pepper, busy_s_max=10.0)
        assert found is not None
        return found

    return one


@pytest.fixture
def ring(opened: Opened) -> Ring:
    return Ring(opened)


def test_H2_nothing_is_kept_before_the_first_key(ring: Ring) -> None:
    assert ring.kept() == []
    before = ring.changes()
    ring.revoke("x", 100.0)
    assert (ring.changes(), ring.kept()) == (before, [])


def test_H2_what_is_kept_is_an_hmac_and_all_that_was_asked_for(ring: Ring) -> None:
    made = ring.issue(Wanted("acme", ("bulk",), ("a", "b"), 50.0), 100.0)
    assert made is not None
    secret, key = made
    assert key.hash == hmac.new(PEPPER.encode(), secret.encode(), "sha256").digest()
    assert ring.kept() == [key]
    assert (key.tenant, key.classes, key.models, key.lifetime_s) == ("acme", ("bulk",), ("a", "b"), 50.0)
    assert (key.created_s, key.expires_s, key.revoked_s) == (100.0, 150.0, None)


def test_H2_a_tenant_has_two_active_keys_and_ended_ones_make_room(ring: Ring) -> None:
    first = ring.issued()
    ring.issued(Wanted("acme", lifetime_s=50.0))
    changes = ring.changes()
    assert ring.issue(ACME, 149.0) is None
    assert ring.changes() == changes
    assert len(ring.kept()) == 2
    ring.issued(Wanted("batchco"))
    ring.issued(Wanted(ADMIN))
    ring.issued(ACME, 150.0)  # the second has expired
    assert ring.issue(ACME, 150.0) is None
    ring.revoke(first.id, 151.0)
    ring.issued(ACME, 151.0)


def test_H2_two_active_keys_hold_against_a_race(opened: Opened) -> None:
    Ring(opened).issued(Wanted("other"))
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: Ring(opened).issue(ACME, 100.0) is not None, range(16))) == ACTIVE_MAX
    assert sum(key.tenant == "acme" for key in Ring(opened).kept()) == ACTIVE_MAX


def test_H2_nobodys_change_is_lost_in_a_race(opened: Opened) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: Ring(opened).issued(Wanted(f"tenant-{number}")), range(12)))
    assert {key.id for key in Ring(opened).kept()} == {key.id for key in made}


def test_H2_a_rotated_key_works_on_for_its_grace(ring: Ring) -> None:
    old = ring.issued()
    made = ring.issue(ACME, 200.0, old.id, 260.0)
    assert made is not None
    new = made[1]
    assert ring.states(259.9) == {old.id: "active", new.id: "active"}
    assert ring.states(260.0) == {old.id: "expired", new.id: "active"}


def test_H2_a_grace_never_makes_a_key_live_longer(ring: Ring) -> None:
    old = ring.issued(Wanted("acme", lifetime_s=10.0))
    assert ring.issue(ACME, 105.0, old.id, 1_000.0) is not None
    assert ring.states(110.0)[old.id] == "expired"


def test_H2_a_third_key_by_rotation_needs_a_grace_of_nothing(ring: Ring) -> None:
    old = ring.issued()
    ring.issued()
    assert ring.issue(ACME, 200.0, old.id, 260.0) is None
    assert ring.states(300.0)[old.id] == "active", "a rotation that is refused ends nothing"
    assert ring.issue(ACME, 200.0, old.id, 200.0) is not None
    assert ring.states(200.0)[old.id] == "revoked"


def test_H2_another_visitor_sees_every_change(opened: Opened) -> None:
    ours, theirs = Ring(opened), Ring(opened)
    seen = [theirs.changes()]
    key = ours.issued()
    seen.append(theirs.changes())
    theirs.revoke(key.id, 150.0)
    seen.append(ours.changes())
    assert len(set(seen)) == 3
    assert ours.states(150.0) == {key.id: "revoked"}
    theirs.revoke(key.id, 175.0)
    assert [one.revoked_s for one in ours.kept()] == [150.0], "revoked once"


def test_H2_ended_keys_are_listed_and_the_list_is_bounded(ring: Ring) -> None:
    names = []
    for number in range(ENDED_KEPT_MAX + 5):
        key = ring.issued(ACME, 100.0 + number)
        ring.revoke(key.id, 100.5 + number)
        names.append(key.id)
    last = ring.issued(ACME, 500.0)
    assert [key.id for key in ring.kept()] == [*names[-ENDED_KEPT_MAX:], last.id]


def test_H2_another_pepper_is_said_and_issues_nothing(opened: Opened) -> None:
    key = Ring(opened).issued()
    other = Ring(lambda pepper: opened(pepper + "x"))
    assert [one.id for one in other.kept()] == [key.id]
    with pytest.raises(KeyStoreError, match=r"another pepper than that in ledger\.keys_secret"):
        other.run(lambda keys: keys.pepper(100.0))
    with pytest.raises(KeyStoreError, match="another pepper"):
        other.issue(ACME, 100.0)
    other.revoke(key.id, 150.0)
    assert other.issue(ACME, 151.0) is not None, "where none is good any more, another pepper may begin"


def test_H2_a_short_pepper_is_not_taken(opened: Opened) -> None:
    with pytest.raises(LedgerError, match="fewer than 32 characters") as short:
        opened("short-pepper")
    assert "short-pepper" not in str(short.value)


@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:20]))
def test_H3_no_text_is_taken_for_anything_else(ring: Ring, text: str) -> None:
    key = ring.issued()
    ring.revoke(text, 150.0)
    assert ring.states(150.0) == {key.id: "active"}
    wanted = Wanted(f"t{text}", (text,), (text,))
    odd = ring.issued(wanted)
    (found,) = [one for one in ring.kept() if one.id == odd.id]
    assert (found.tenant, found.classes, found.models) == (wanted.tenant, wanted.classes, wanted.models)

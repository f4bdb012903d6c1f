"""A session outlives kill -9 of the gateway that opened it, and what it did not spend comes back once (B14, A9, A11)."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Engine, Gateway, ask, configuration, engine, gateway, stream, until

from headworks.testing import servers

ACME_KEY = "acme-key-of-the-drill-which-is-long-enough"
ACME = {"Authorization": f"Bearer {ACME_KEY}"}
TOKENS = 4_000
LEASE_S = 1.5
SLOW = ("--speed", "0.2")


@contextlib.contextmanager
def started(place: Path, upstream: Engine, ledger: dict[str, Any]) -> Iterator[Gateway]:
    place.mkdir(exist_ok=True)
    tenants = {"acme": {"keys": ["env:ACME_KEY"]}}
    file = configuration(place, upstream.url, ledger={"lease_s": LEASE_S, **ledger}, tenants=tenants)
    with gateway("--config", str(file), directory=place, ACME_KEY=ACME_KEY) as front:
        yield front


def opened(front: Gateway) -> str:
    answer = httpx.post(front.url + "/admit/session", json={"tokens": TOKENS}, headers=ACME, timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session"])


def closed(front: Gateway, session: str) -> dict[str, Any]:
    answer = httpx.delete(f"{front.url}/admit/session/{session}", headers=ACME, timeout=30)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def shown(front: Gateway) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = front.get("/admin/ledger").json()["sessions"]
    return sessions


def held(front: Gateway) -> int:
    return int(front.get("/admin/ledger").json()["tokens"]["llama"])


def killed_amid(front: Gateway, session: str) -> int:
    """One call has ended and one is at its answer when the gateway is killed. What the first one spent."""
    assert ask(front.url, **ACME, **{"Headworks-Session": session}).status_code == 200
    until(lambda: shown(front)[0]["running_tokens"] == 0)
    (before,) = shown(front)
    assert before["unspent_tokens"] == TOKENS - before["spent_tokens"] == held(front)
    with contextlib.suppress(httpx.HTTPError), stream(front.url, 600, **ACME, **{"Headworks-Session": session}) as lines:
        next(lines)
        until(lambda: [one["seen"] for one in front.get("/admin/ledger").json()["records"]] == [True])
        written_down(front)
        (during,) = shown(front)
        assert during["running_tokens"] > 0
        assert during["unspent_tokens"] + during["running_tokens"] + during["spent_tokens"] == TOKENS
        front.send(signal.SIGKILL)
        front.ended()
    return int(before["spent_tokens"])


def written_down(front: Gateway) -> None:
    """Nothing is sent before its reservation is on record, and with it all that came before."""
    assert ask(front.url, **ACME).status_code == 200


def comes_back_once(front: Gateway, upstream: Engine, session: str, spent_tokens: int) -> None:
    """What ran is charged until it is proved stopped; then the session has what was not spent, gives it back, and not again."""
    until(lambda: upstream.inside() == 0 and len(front.get("/admin/ledger").json()["records"]) == 0, 2 * LEASE_S + 10.0)
    (after,) = shown(front)
    assert after["spent_tokens"] > spent_tokens, "the one that was killed had begun to answer"
    assert held(front) == after["unspent_tokens"] == TOKENS - after["spent_tokens"]
    assert ask(front.url, **ACME, **{"Headworks-Session": session}).status_code == 200, "it goes on"
    until(lambda: shown(front)[0]["running_tokens"] == 0)
    told = closed(front, session)
    assert told["ended"] == "closed"
    assert told["returned_tokens"] == TOKENS - told["spent_tokens"] > 0
    assert (held(front), shown(front)) == (0, [])
    assert closed(front, session) == told
    assert (held(front), front.audit()) == (0, [])


def test_B14_killed_over_a_file_the_next_process_finds_the_session(tmp_path: Path) -> None:
    ledger = {"url": "sqlite:ledger.db"}
    with engine(0, *SLOW) as upstream:
        with started(tmp_path, upstream, ledger) as front:
            session = opened(front)
            spent_tokens = killed_amid(front, session)
        with started(tmp_path, upstream, ledger) as front:
            comes_back_once(front, upstream, session, spent_tokens)
            written_down(front)
            front.send(signal.SIGKILL)
            front.ended()
        with started(tmp_path, upstream, ledger) as front:
            assert shown(front) == [], "nor is it there again after another kill"
            until(lambda: held(front) == 0, 2 * LEASE_S + 10.0)  # the last call may not have been seen to end
            assert front.audit() == []


@pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
def test_B14_killed_over_a_shared_store_the_other_gateway_has_the_session(tmp_path: Path) -> None:
    with engine(0, *SLOW) as upstream, servers.single() as store:
        ledger = {"url": store.url}
        with started(tmp_path / "one", upstream, ledger) as one, started(tmp_path / "other", upstream, ledger) as other:
            session = opened(one)
            spent_tokens = killed_amid(one, session)
            comes_back_once(other, upstream, session, spent_tokens)

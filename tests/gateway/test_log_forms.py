"""Lines of the decision log: short, and read back whole (F2, decision 41)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gateway_records import asked_for, decided, ended, turned

from headworks.core.effects import Outcome
from headworks.core.types import Decision, RequestKey, Verdict
from headworks.gateway import decisions, log_forms, log_index
from headworks.gateway.decisions import DecisionLog, find, paths
from headworks.gateway.log_forms import SHAPES_MAX, exact_ns
from headworks.logs import reading
from headworks.logs.fields import NAMES, OTHERWISE

SEED = 5
FULL = Verdict("tenant", "tenant:acme", 17_000, 15_000, "tokens", False, "tenant_capacity_exceeded")
ROOM = Verdict("memory", "pool:llama", 0.25, 0.85, "kv_ratio", True, "kv_saturation")


def opened(directory: Path, **settings: Any) -> DecisionLog:
    return DecisionLog(directory, clock_s=lambda: 1.0, wall_s=lambda: 1_796_000_001.0, flush_s=60.0, **settings)


def named(name: str, *verdicts: Verdict, **changes: Any) -> Decision:
    return dataclasses.replace(decided("admit", "", *verdicts), id=name, key=RequestKey("acme", name), **changes)


def raw(directory: Path) -> list[Any]:
    return [json.loads(line) for path in paths(directory) for line in path.read_text().splitlines()]


def test_F2_what_lines_have_in_common_is_written_once(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(3):
        log.write(named(f"r{number}", FULL._replace(value=number), ROOM))
        log.write(ended("completed", id=f"r{number}", key=RequestKey("acme", f"r{number}")))
    log.close()
    found = raw(tmp_path)
    forms = [line["record"] for line in found if isinstance(line, dict) and line["kind"] == "form"]
    assert [form["number"] for form in forms[:2]] == [1, 2]
    assert forms[:2] == forms[2:], "once at the head of the file, and once where they were made"
    assert forms[0]["verdicts"] == [
        ["tenant", "tenant:acme", "tokens", "tenant_capacity_exceeded"],
        ["memory", "pool:llama", "kv_ratio", "kv_saturation"],
    ]
    lines = [line for line in found if isinstance(line, list)]
    assert [line[:4] for line in lines[:2]] == [["decision", 1, "r0", None], ["outcome", 2, "r0", None]]
    assert [line[8] for line in lines if line[0] == "decision"] == [[number, 15_000, 0.25, 0.85] for number in range(3)]


def test_F2_a_request_is_some_six_hundred_bytes(tmp_path: Path) -> None:
    """2,600 of them were names before."""
    log = opened(tmp_path)
    for number in range(100):
        name = f"req_{number:016x}"
        at_s = 68_067.36694024 + number / 1000
        log.write(named(name, FULL, ROOM, FULL, ROOM, FULL, ROOM, decided_s=at_s, waited_s=0.0004))
        fields = {"id": name, "key": RequestKey("acme", name), "execution": f"{number:032x}", "request": asked_for(name)}
        log.write(ended("completed", **fields, arrived_s=at_s, admitted_s=at_s, sent_s=at_s, ended_s=at_s, told_s=at_s))
    log.close()
    assert sum(len(line) for line in paths(tmp_path)[0].read_bytes().splitlines() if line.startswith(b"[")) < 65_000


def test_F2_every_field_of_an_outcome_comes_back_under_its_name(tmp_path: Path) -> None:
    outcome = ended("completed", request=asked_for("d"), marks=[(11.5, 48)], told_s=10.0, predicted_total_s=2.5)
    log = opened(tmp_path)
    log.write(outcome)
    log.close()
    (line,) = (line for path in paths(tmp_path) for line in reading.lines(path))
    expected = dataclasses.asdict(outcome) | {"key": ["acme", "k"], "marks": [[11.5, 48]]}
    del expected["request"], expected["missed"]
    asked = [1032, None, 64, 0, 1, True, False, False, 0, None, 55.0, "text", "/v1/chat/completions"]
    assert line["record"] == expected | {"asked": asked}


FURTHER: dict[str, Any] = {
    "reason": "queue_timeout",
    "retry_after_s": 1.5,
    "position": 2,
    "degraded": "clamp_output=64",
    "at_arrival": False,
    "forecast.wait_s": 0.25,
    "forecast.wait_most_s": None,
    "forecast.wait_spread_s": 0.125,
    "forecast.drain_tokens_per_s": 81.5,
    "forecast.drain_error_ratio": 0.0625,
    "work.engine_s": 0.5,
    "work.bound_tokens": 7,
}


@pytest.mark.parametrize("name", ["", *FURTHER])
def test_F2_what_an_ordinary_decision_does_not_have_is_left_out(name: str, tmp_path: Path) -> None:
    plain = named("r1", FULL)
    forecast = dataclasses.replace(plain.forecast, wait_s=0.0, wait_most_s=0.0)
    group, _, field = name.rpartition(".")
    changed: dict[str, Any] = {"forecast": forecast}
    if group:
        changed[group] = dataclasses.replace(forecast if group == "forecast" else plain.work, **{field: FURTHER[name]})
    elif name:
        changed[field] = FURTHER[name]
    decision = dataclasses.replace(plain, **changed)
    log = opened(tmp_path)
    log.write(decision)
    log.close()
    (line,) = (line for line in raw(tmp_path) if isinstance(line, list))
    assert len(line) == len(NAMES["decision"]) + (len(OTHERWISE["decision"]) if name else 0)
    expected = dataclasses.asdict(decision) | {"key": ["acme", "r1"], "verdicts": [FULL._asdict()]}
    del expected["rows"]
    assert find(tmp_path, "r1")[0]["record"] == expected


def test_F2_what_an_ordinary_outcome_does_not_have_is_left_out(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.write(ended("completed"))
    changes: list[dict[str, Any]] = [
        {"reason": "preempted"},
        {"retry": True},
        {"unconfirmed_s": 0.5},
        {"grown_tokens": 64},
        {"growths": 1},
        {"growths_refused": 1},
        {"retry_kind": "early"},
        {"marks": [(11.5, 48)]},
        {"work": dataclasses.replace(ended("failed").work, engine_s=0.5)},
        {"work": dataclasses.replace(ended("failed").work, bound_tokens=7)},
    ]
    for change in changes:
        log.write(ended("completed", **change))
    log.close()
    ordinary, *others = [len(line) for line in raw(tmp_path) if isinstance(line, list)]
    assert ordinary == len(NAMES["outcome"])
    assert set(others) == {ordinary + len(OTHERWISE["outcome"])}
    first, *records = [line["record"] for line in find(tmp_path, "d")]
    for change, record in zip(changes, records, strict=True):
        told = {name: value for name, value in record.items() if value != first[name]}
        as_json = {name: dataclasses.asdict(value) if name == "work" else value for name, value in change.items()}
        assert told == json.loads(json.dumps(as_json))


def test_F2_times_come_back_to_the_last_bit(tmp_path: Path) -> None:
    """Of the clock, of a turn, and of a simulation, which has any. Replay with another seed: change SEED."""
    random = Random(SEED)
    written: dict[str, tuple[float, float, float]] = {}
    log = opened(tmp_path)
    for number in range(300):
        came_s = random.choice([random.randrange(10**14) / 10**9, random.uniform(0.0, 100.0), random.uniform(0.0, 3e7)])
        decided_s = random.choice([came_s, round(came_s * 10**8 + 41_000) / 10**8, came_s + random.random()])
        written[f"r{number}"] = came_s, decided_s, decided_s - came_s
        log.write(named(f"r{number}", decided_s=decided_s, waited_s=decided_s - came_s))
        log.write(ended("failed", id=f"r{number}", arrived_s=came_s, first_byte_s=decided_s, told_s=None))
    log.close()
    for line in (line for path in paths(tmp_path) for line in reading.lines(path)):
        record = line["record"]
        came_s, decided_s, waited_s = written[record["id"]]
        if line["kind"] == "decision":
            assert record["decided_s"] == line["monotonic_s"] == decided_s
            assert record["waited_s"] == pytest.approx(waited_s, abs=4e-9)
        else:
            assert (record["arrived_s"], record["first_byte_s"], record["told_s"]) == (came_s, decided_s, None)


def test_F2_an_instant_is_a_number_of_nanoseconds_or_itself() -> None:
    assert exact_ns(68_067.366535625) == 68_067_366_535_625
    assert exact_ns(None) is None
    assert exact_ns(1 / 3) == 1 / 3
    assert [exact_ns(at_s) for at_s in (-0.25, 2e7)] == [-0.25, 2e7]


def test_F2_each_file_has_the_forms_it_refers_to(tmp_path: Path) -> None:
    log = opened(tmp_path, rotate_bytes=1)
    for number in range(4):
        log.write(named(f"r{number}", FULL))
        log.flush()
    log.close()
    first, *_, last = paths(tmp_path)
    first.unlink()
    (line,) = reading.lines(last)
    assert (line["record"]["id"], line["record"]["key"][0]) == ("r3", "acme")
    assert find(tmp_path, "r3") == [line]


def test_F2_scopes_that_do_not_repeat_stand_in_their_own_lines(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(SHAPES_MAX + 5):
        log.write(named(f"r{number}", FULL._replace(scope=f"session:acme/1/{number}")))
    log.write(named("again", FULL._replace(scope="session:acme/1/3")))
    log.close()
    of_lines = [line[1] for line in raw(tmp_path) if isinstance(line, list)]
    assert of_lines[:SHAPES_MAX] == list(range(1, SHAPES_MAX + 1))
    assert [isinstance(form, dict) for form in of_lines[SHAPES_MAX:]] == [True] * 5 + [False]
    assert of_lines[-1] == 4
    log_index.make(paths(tmp_path)[0])
    for number in range(SHAPES_MAX + 5):
        (line,) = find(tmp_path, f"r{number}")
        assert line["record"]["verdicts"][0]["scope"] == f"session:acme/1/{number}"


def test_F2_when_there_are_too_many_forms_a_line_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_forms, "FORMS_MAX", 1)
    log = opened(tmp_path)
    log.write(named("r1", FULL))
    log.write(ended("completed", id="r1", key=RequestKey("acme", "r1"), execution="e1"))
    log.write(named("r2", FULL, pool="other"))
    log.close()
    forms = [line[1] for line in raw(tmp_path) if isinstance(line, list)]
    assert (forms[0], forms[1]["client"], forms[2]["pool"]) == (1, "acme/1", "other")
    log_index.make(paths(tmp_path)[0])
    assert [line["kind"] for line in find(tmp_path, "r1")] == ["decision", "outcome"]
    assert find(tmp_path, "e1")[0]["record"]["client"] == "acme/1"
    assert find(tmp_path, "r2")[0]["record"]["pool"] == "other"


def test_F2_an_index_knows_the_forms(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.write(named("r1", FULL))
    log.write(ended("completed", id="r1", key=RequestKey("acme", "r1")))
    log.close()
    (path,) = paths(tmp_path)
    scanned = find(tmp_path, "r1")
    log_index.make(path)
    offsets, covered_bytes = log_index.look_up(path, "form 2")
    assert covered_bytes == path.stat().st_size
    assert all(path.read_bytes()[offset:].startswith(b'{"kind":"form"') for offset in offsets)
    assert len(offsets) == 2
    assert find(tmp_path, "r1") == scanned
    assert [line["kind"] for line in scanned] == ["decision", "outcome"]


def test_F2_a_form_is_not_lost_with_the_lines_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was too slow for the first of its lines: those that come later refer to it."""
    log = opened(tmp_path)
    log.write(named("before"))
    log.flush()
    monkeypatch.setattr(decisions, "BUFFER_BYTES_MAX", 0)
    log.write(named("lost", FULL))
    log.flush()
    assert log.dropped == 1
    monkeypatch.undo()
    log.write(named("kept", FULL))
    log.close()
    assert [line["record"]["id"] for line in reading.lines(paths(tmp_path)[0])] == ["before", "kept"]
    assert find(tmp_path, "kept")[0]["record"]["verdicts"] == [FULL._asdict()]


def test_F2_a_tenant_that_was_taken_out_has_forms_of_its_own_again() -> None:
    """The very next line of it too."""
    forms = log_forms.Forms()
    assert [forms.outcome(ended("completed"), 0.0)[1] for _ in range(3)] == [1, 1, 1]
    assert forms.forget("acme") == [1]
    assert [forms.outcome(ended("completed"), 0.0)[1] for _ in range(3)] == [2, 2, 2]
    assert [form["number"] for form in forms.made] == [1, 2]


def test_F2_a_line_whose_form_is_gone_is_passed_over(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.write(named("r1", FULL))
    log.close()
    (path,) = paths(tmp_path)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if not line.startswith(b'{"kind":"form"')))
    assert list(reading.lines(path)) == []
    assert find(tmp_path, "r1") == []


def test_F2_what_is_without_bound_is_null_and_passes(tmp_path: Path) -> None:
    infinite = float("inf")
    log = opened(tmp_path)
    log.write(named("r1", FULL._replace(value=infinite), ROOM._replace(limit=infinite)))
    log.close()
    first, second = find(tmp_path, "r1")[0]["record"]["verdicts"]
    assert (first["value"], first["passed"], first["reason"]) == (None, False, "tenant_capacity_exceeded")
    assert (second["limit"], second["passed"], second["reason"]) == (None, True, "")


def test_F2_records_are_written_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    log = opened(tmp_path)
    written: list[Decision | Outcome] = [named("r1"), ended("failed", id="r1"), named("r2")]
    for record in written:
        log.write(record)
        log.name(record.id, record.key, f"own-{record.id}")
    log.close()
    lines = list(reading.lines(paths(tmp_path)[0]))
    assert [line["kind"] for line in lines] == ["decision", "name", "outcome", "name", "decision", "name"]


def test_F2_what_was_refused_unread_is_one_line_and_is_read_as_a_decision_and_an_outcome(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    given = [turned(f"r{number}", FULL._replace(value=number), ROOM) for number in range(3)]
    given.append(turned("r3", FULL, retry_kind="early", retry_count=2, start_by_s=12.5))
    apart, together = opened(two), opened(one)
    for away in given:
        together.write(away)
        apart.write(away.decision)
        apart.write(away.outcome())
    together.close()
    apart.close()
    lines = [line[:4] for line in raw(one) if isinstance(line, list)]
    assert lines == [["turned_away", form, f"r{number}", None] for number, form in enumerate((1, 1, 1, 2))]
    assert list(reading.lines(paths(one)[0])) == list(reading.lines(paths(two)[0]))
    found = find(one, "r3")
    assert [line["kind"] for line in found] == ["decision", "outcome"]
    assert found[1]["record"]["retry_kind"] == "early"
    log_index.make(paths(one)[0])
    assert find(one, "r3") == found
    together = opened(one)
    assert together.delete("acme").lines == 4 + 4, "each line, and the forms at the head and where they were made"
    together.close()
    assert find(one, "r3") == []

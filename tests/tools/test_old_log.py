"""A decision log written before decision 41, whose lines were all objects: it is read as ever (F2, G2)."""

from __future__ import annotations

from pathlib import Path

from headworks.logs import reading
from headworks.tools.decision_log import lives

OLD = Path(__file__).parent / "before_0041"
"""The beginning of `overload` in `logged_story.py`, as the version of 2026-11-30 wrote it, and a name."""


def test_G2_the_life_in_an_old_log_is_whole() -> None:
    (life,) = lives(OLD)
    assert (life.gateway, life.whole, life.began_s, len(life.policies), len(life.facts)) == ("gateway-0", True, 0.0, 1, 2)
    found = [(one.ended.id, one.ended.outcome, one.place, one.end_place, one.granted_place) for one in life.arrivals]
    assert found[:5] == [
        ("r0.0", "completed", 0, 11, 8),
        ("r1.0", "completed", 9, 15, 12),
        ("r2.0", "completed", 10, 18, 16),
        ("r3.0", "completed", 13, 33, 19),
        ("r4.0", "completed", 14, 36, 34),
    ]
    assert [name for name, outcome, *_ in found if outcome == "refused"] == ["r9.0", "r10.0", "r11.0", "r12.0", "r13.0"]
    first = life.arrivals[0]
    assert (first.at_s, first.ended.first_byte_s, first.ended.ended_s) == (1.009724736, 1.024277742, 1.094567742)
    assert first.ended.work.kv_tokens == 384
    assert first.ended.usage is not None
    assert first.ended.usage.output_tokens == 23


def test_F2_a_record_of_an_old_log_is_as_it_was_written() -> None:
    (path,) = OLD.glob("*.jsonl")
    lines = list(reading.lines(path))
    assert len(lines) == 37
    refused = next(line["record"] for line in lines if line["kind"] == "decision" and line["record"]["outcome"] == "refuse")
    assert (refused["id"], refused["key"], refused["retry_after_s"]) == ("r9.0", ["acme", "minted-r9.0"], 1.0)
    assert [verdict["unit"] for verdict in refused["verdicts"] if not verdict["passed"]] == [
        "requests waiting at an unknown rate"
    ]

"""`headworks doctor`: what it says of an engine is what that engine does, whatever the engine says of itself (F6)."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headworks.cli.main import run as headworks
from headworks.engines.endpoint import Endpoint
from headworks.engines.pool import Pool
from headworks.engines.vllm import VllmEngine
from headworks.sim.presets import BatchingSettings, vllm_cpu_tiny
from headworks.testing.fake.llamacpp import FakeLlamaServer
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake.sglang import FakeSglang
from headworks.testing.fake_engine import FakeEngine
from headworks.tools.doctor import Order, examine
from headworks.tools.doctor_answers import Measured
from headworks.tools.doctor_look import Watched, incarnation_finding, load_finding
from headworks.tools.doctor_report import BROKEN, HOLDS, NOTE, UNKNOWN, Report
from headworks.tools.doctor_stops import Left, Rounds, rounds_of, stop_finding
from headworks.tools.doctor_wire import Ward

Capture = pytest.CaptureFixture[str]
SPEED = 4.0


def engine(**fields: Any) -> BatchingSettings:
    return replace(vllm_cpu_tiny(), running_max=6, batch_tokens_max=512, abort_lag_steps=2, **fields)


def settings(batching: BatchingSettings | None = None, **fields: Any) -> FakeSettings:
    return FakeSettings(engine=batching or engine(), **{"speed": SPEED, **fields})


def examined(given: FakeSettings, kind: type[FakeEngine] = FakeEngine, drop: str = "", **order: Any) -> Report:
    async def steps() -> Report:
        fake = kind(given)
        async with fake as url:
            if drop:
                fake.faults.dropped_series.add(drop)
            return await examine(Order(url, **{"watch_s": 0.3, "times": 3, "streams": 10, **order}))

    return asyncio.run(steps())


def outcomes(report: Report) -> dict[str, str]:
    return {finding.check: finding.outcome for finding in report.findings}


def flag(report: Report, name: str) -> str | None:
    return next(one.value for one in report.flags if one.name == name)


def test_F6_a_sound_engine_has_the_evidence_it_claims_and_its_places_are_counted() -> None:
    report = examined(settings())
    assert report.holds
    assert (report.evidence, report.evidence_min) == (("E1", "E3a", "E3b", "E4"), "E3")
    assert {check for check, outcome in outcomes(report).items() if outcome == HOLDS} >= {
        *("metric names", "incarnation", "answer in one piece", "stream", "request ids", "clock", "load gauges"),
        *("abort on half-close", "abort on disconnect", "abort without a stream", "abort of a crowd"),
    }
    assert flag(report, "--max-num-seqs") == "6"
    assert flag(report, "--enable-chunked-prefill") == "on"
    about = int((flag(report, "--max-num-batched-tokens") or "").removeprefix("about ").replace(",", ""))
    assert 300 <= about <= 1_000, "512, by how long a stream stood still on this machine"
    half = report.finding("abort on half-close")
    assert half is not None and (half.figures["tried"], half.figures["stopped"]) == (3, 3)
    assert half.figures["kv_kept_max_ratio"] == 0.0


def test_F6_an_engine_that_does_not_notice_who_leaves_is_said_to_be_broken() -> None:
    report = examined(settings(ignore_abort=True, speed=8.0))
    assert not report.holds
    assert (report.evidence, report.evidence_min) == (("E1", "E4"), "E1")
    found = outcomes(report)
    assert [found[f"abort {how}"] for how in ("on half-close", "on disconnect", "without a stream")] == [BROKEN] * 3
    assert found["places"] == UNKNOWN, "a crowd is not let loose on it"
    half = report.finding("abort on half-close")
    assert half is not None and half.saw.startswith("CANCELLATION IS BROKEN: ") and "evidence_min: E1" in half.mend


def test_F6_a_connection_that_is_closed_while_the_work_goes_on_is_found_out_by_the_clock() -> None:
    report = examined(settings(close_but_run=True, speed=8.0))
    half = report.finding("abort on half-close")
    assert half is not None and half.outcome == BROKEN
    assert "the connection was closed" in half.saw and "steps followed, and it was still inside" in half.saw
    assert "E3a" not in report.evidence and "E3b" not in report.evidence


def test_F6_an_engine_that_stops_too_late_for_its_clock_keeps_the_counting_proof() -> None:
    report = examined(settings(replace(engine(), abort_lag_steps=30)))
    assert report.evidence == ("E1", "E3b", "E4")
    assert outcomes(report)["abort on half-close"] == BROKEN
    assert outcomes(report)["abort on disconnect"] == HOLDS


def test_F6_who_ran_to_the_end_faster_than_was_thought_has_not_been_stopped() -> None:
    async def steps() -> Rounds:
        async with FakeEngine(settings(ignore_abort=True, speed=8.0)) as url:
            seen = Measured()
            seen.gauges_follow, seen.tpot_s = True, 0.02  # fifty times what it takes here
            adapter = VllmEngine("engine", url, time.monotonic)
            ward = Ward(adapter, url, None, "vllm", "tiny", 4_096, Pool(Endpoint(url), time.monotonic), Random(1))
            try:
                return await rounds_of(ward, seen, "close", 3)
            finally:
                await ward.close()

    rounds = asyncio.run(steps())
    assert len(rounds.lefts) == 1 and not rounds.stopped


def test_F6_a_series_that_is_missing_is_named_with_what_it_was_for() -> None:
    report = examined(settings(), drop="vllm:iteration_tokens_total", streams=0)
    names = report.finding("metric names")
    assert names is not None and names.outcome == BROKEN
    assert names.saw == "missing: vllm:iteration_tokens_total_count (the clock proof (E3a))"
    assert report.evidence == ("E1", "E3b", "E4")


def test_F6_a_full_engine_is_understood_or_not() -> None:
    report = examined(settings(replace(engine(), queued_max=8)))
    busy = report.finding("busy answer")
    assert busy is not None and (busy.outcome, busy.saw) == (HOLDS, "2 of 10 were told 503, without Retry-After; understood")
    assert flag(report, "--max-num-queued-reqs") == "8"


def test_F6_an_engine_that_others_use_is_left_alone() -> None:
    async def steps() -> tuple[Report, Report, int]:
        fake = FakeEngine(settings())
        async with fake as url:
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await reader.readline()
            alone = await examine(Order(url, watch_s=0.3))
            requests = fake.requests
            allowed = await examine(Order(url, watch_s=0.3, busy_ok=True))
            writer.close()
            return alone, allowed, requests

    alone, allowed, requests = asyncio.run(steps())
    assert alone.is_busy and requests == 1, "nothing was sent"
    assert outcomes(alone)["requests"] == UNKNOWN and alone.evidence == ()
    assert outcomes(allowed)["stream"] == HOLDS and outcomes(allowed)["stops"] == UNKNOWN
    assert "abort on half-close" not in outcomes(allowed)


def test_F6_looking_only_sends_nothing_and_is_no_busy_engine() -> None:
    report = examined(settings(), passive=True)
    assert outcomes(report)["requests"] == NOTE
    assert not report.is_busy and report.holds


def test_F6_what_is_not_done_in_time_is_not_measured_and_said() -> None:
    report = examined(settings(), limit_s=0.2)
    late = report.finding("time")
    assert late is not None and late.outcome == UNKNOWN and "abort on half-close" in late.saw
    assert "E3a" not in report.evidence


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(FakeLlamaServer, ("E1", "E3a", "E3b", "E4")), (FakeSglang, ("E1", "E3b", "E4"))],
)
def test_F6_other_engines_by_their_own_surface(kind: type[FakeEngine], expected: tuple[str, ...]) -> None:
    report = examined(settings(), kind)
    assert report.evidence == expected
    assert report.holds, [finding for finding in report.findings if finding.outcome == BROKEN]


# is admission control the right tool?


def page(answers: int, waits_s: float, preemptions: int = 0, turned_away: int = 0) -> bytes:
    return (
        f'vllm:request_success_total{{finished_reason="stop"}} {answers}\n'
        f"vllm:request_queue_time_seconds_sum {waits_s}\nvllm:request_queue_time_seconds_count {answers}\n"
        f"vllm:num_preemptions_total {preemptions}\nvllm:admission_rejections_total {turned_away}\n"
    ).encode()


def watched(before: bytes, after: bytes, waiting: int = 0, kv_ratio: float = 0.2) -> Watched:
    return Watched(60.0, 240, 4, waiting, kv_ratio, before, after, ("1/2",))


def test_F6_steady_load_below_capacity_is_told_that_it_needs_no_admission_control() -> None:
    finding = load_finding(watched(page(1_000, 1.0), page(1_200, 1.2)))
    assert finding.outcome == NOTE
    assert finding.saw.startswith("1200 answers since its start and nothing ever waited (mean 1.0 ms in its queue")
    assert "wrong tool for a steady load below capacity" in finding.mend


@pytest.mark.parametrize(
    ("after", "waiting", "expected"),
    [
        (page(1_200, 400.0), 0, "in 60 s a request waited 2.00 s in its queue on average"),
        (page(1_200, 1.2, preemptions=3), 0, "in 60 s 3 running requests were put aside for memory"),
        (page(1_200, 1.2, turned_away=7), 0, "in 60 s 7 requests were turned away by its own limit"),
        (page(1_200, 1.2), 5, "up to 5 waited inside it in 60 s"),
    ],
)
def test_F6_an_engine_that_was_asked_for_too_much_has_something_to_decide(after: bytes, waiting: int, expected: str) -> None:
    finding = load_finding(watched(page(1_000, 1.0), after, waiting))
    assert (finding.outcome, finding.saw) == (HOLDS, f"{expected}: there is something to decide")


def test_F6_of_an_engine_that_nobody_uses_nothing_is_said() -> None:
    assert load_finding(watched(page(0, 0.0), page(3, 0.0))).outcome == UNKNOWN
    assert load_finding(watched(b"", b"")).outcome == UNKNOWN


def test_F6_several_engines_at_one_address_are_found_by_their_start_times() -> None:
    seen = replace(watched(b"", b""), incarnations=("1/2", "3/2"))
    finding = incarnation_finding(seen, "1/2")
    assert finding.outcome == BROKEN and "several engines answer at this address" in finding.saw
    assert incarnation_finding(watched(b"", b""), "1/2").outcome == HOLDS


def test_F6_one_that_ran_on_among_many_that_stopped_is_enough() -> None:
    stopped = Left("half", 3.0, gone_s=0.02, steps_while_inside=2, over="closed", steps_after_close=1)
    finding = stop_finding(Rounds([stopped] * 19 + [replace(stopped, gone_s=None, steps_after_close=None)]), "half")
    assert (finding.outcome, finding.figures["tried"], finding.figures["stopped"]) == (BROKEN, 20, 19)
    early = stop_finding(Rounds([stopped] * 19 + [replace(stopped, steps_after_close=4)]), "half")
    assert early.outcome == BROKEN, "by its clock it had stopped, and it had not"
    assert stop_finding(Rounds([stopped] * 20), "half").outcome == HOLDS


# the verb


@pytest.mark.parametrize(("drop", "status"), [((), 0), (("vllm:num_preemptions_total",), 1)])
def test_F6_the_verb_says_by_its_exit_what_it_found(drop: tuple[str, ...], status: int, capsys: Capture) -> None:
    async def steps() -> int:
        fake = FakeEngine(settings())
        async with fake as url:
            fake.faults.dropped_series.update(drop)
            words = ["doctor", url, "--watch", "0.5", "--times", "2", "--streams", "0", "--json"]
            return await asyncio.to_thread(headworks, words)

    assert asyncio.run(steps()) == status
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is (status == 0)
    assert told["found"]["product"] == "vLLM 0.32.0"


def test_F6_where_there_is_no_engine_it_could_not_run(capsys: Capture) -> None:
    assert headworks(["doctor", "http://127.0.0.1:9"]) == 2
    assert "Is an engine there, and ready?" in capsys.readouterr().err

"""A run offers what the plan says, and its figures are what their definitions say (G5)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import scripted_server as wire
import typer
from scripted_server import serving, text_of
from typer.testing import CliRunner

from headworks.cli.load import _report as report
from headworks.cli.load import load as verb
from headworks.sim.traces import Row
from headworks.tools import load
from headworks.tools.load_engine import EngineSample, EngineWatch, LoadError, Target, Words
from headworks.tools.load_figures import end_of, figures, spread
from headworks.tools.load_wire import COMPLETE, LEFT, REFUSED, Attempt


def offered(plan: load.Plan, script: list[bytes]) -> tuple[load.Run, wire.Scripted]:
    async def run() -> tuple[load.Run, wire.Scripted]:
        async with serving(lambda number: script) as scripted:
            plan.url = scripted.url
            return await load.run(plan), scripted

    return asyncio.run(run())


def test_G5_every_call_of_the_seed_is_sent_with_its_lengths() -> None:
    run, scripted = offered(load.Plan(url="", rate_per_s=40.0, seconds=1.0, seed=3), [wire.WHOLE])
    made = figures(run)
    assert made.offered == len(scripted.bodies) == made.good > 20
    assert made.ends == {"good": made.offered}
    for call, body in zip(run.calls, sorted(scripted.bodies, key=text_of), strict=True):
        assert body["max_tokens"] == call.row.output_tokens
        # The server prices a word at two tokens and the frame at ten; the driver has learnt that from two short calls.
        assert abs(10 + 2 * len(text_of(body).split()) - call.row.prompt_tokens) <= 3 or call.row.prompt_tokens < 14
        assert call.row.prompt_tokens + call.row.output_tokens <= 1000


def test_G5_the_driver_keeps_time_whatever_the_server_does() -> None:
    run, _ = offered(load.Plan(url="", rate_per_s=40.0, seconds=1.0, seed=3, patience_s=0.3), [])
    starts_s = [call.attempts[0].started_s - run.started_s for call in run.calls]
    late_s = [start_s - call.row.t_s for start_s, call in zip(starts_s, run.calls, strict=True)]
    assert min(late_s) > -0.002
    assert (spread(late_s).p50_s or 0.0) < 0.05
    assert {call.attempts[0].end for call in run.calls} == {LEFT}
    assert figures(run).goodput_per_s == 0.0


def test_G5_no_two_prompts_begin_alike_and_the_seed_fixes_the_rest() -> None:
    one, other = Words(1, "aa"), Words(1, "bb")
    assert one.text(5, 8)[:8] == "aa000005"
    assert other.text(5, 8)[:8] == "bb000005"
    assert one.text(5, 8)[8:] == other.text(5, 8)[8:]
    assert len(one.text(123_456, 39_999).split()) == 40_000


def attempt(started_s: float, first_s: float, ended_s: float, end: str = COMPLETE, output_tokens: int = 10) -> Attempt:
    status = {COMPLETE: 200, REFUSED: 429}.get(end, 0)
    code = "queue_full" if end == REFUSED else ""
    return Attempt(
        started_s, status, code, first_token_s=first_s, ended_s=ended_s, prompt_tokens=100, output_tokens=output_tokens, end=end
    )


def sample(at_s: float, waiting: float, generated: float, prompted: float) -> EngineSample:
    return EngineSample(at_s, 4.0, waiting, 0.1, prompted, generated, 0.0)


def run_of(attempts: list[list[Attempt]], samples: list[EngineSample]) -> load.Run:
    plan = load.Plan(url="http://x", seconds=10.0)
    calls = [load.Call(number, Row(made[0].started_s - 100.0, 100, 10), made) for number, made in enumerate(attempts)]
    return load.Run(plan, Target("tiny", 1000), 1.0, calls, 100.0, [0.0], samples, 0.1)


def test_G5_figures_of_a_run_worked_out_by_hand() -> None:
    run = run_of(
        [
            [attempt(101.0, 101.5, 104.0)],  # good, ended in the first half
            [attempt(102.0, 103.5, 106.0)],  # whole, but its first token took 1.5 s
            [attempt(106.0, 106.2, 107.0)],  # good, ended in the second half
            [attempt(107.0, 0.0, 109.0, LEFT, 0)],
            [attempt(108.0, 0.0, 108.004, REFUSED, 0), attempt(109.0, 109.1, 112.0)],  # good, ended after the load
        ],
        [sample(99.0, 0, 1000, 5000), sample(102.0, 1, 1010, 5200), sample(108.0, 5, 1030, 5300), sample(113.0, 0, 1060, 5400)],
    )
    made = figures(run)
    assert made.ends == {"good": 3, "late": 1, "left": 1}
    assert made.answers == {"200": 4, "429 queue_full": 1, "left": 1}
    assert (made.offered, made.attempts, made.retries, made.good) == (5, 6, 1, 3)
    assert made.goodput_per_s == pytest.approx(0.2)  # two ended within the ten seconds
    assert made.second_half.goodput_per_s == pytest.approx(0.2)  # one ended within its five
    assert made.second_half.slo_met_ratio == pytest.approx(2 / 3)
    assert made.wasted_ratio == pytest.approx(0.5)  # 60 generated, 30 of them in good answers
    assert made.wasted_work_ratio == pytest.approx(1 - 330 / 460)
    assert made.engine is not None
    assert (made.engine.waiting_requests_mean, made.engine.waiting_requests_max) == (3.0, 5.0)
    assert made.second_half.waiting_requests_mean == 5.0
    assert made.refusal.p99_s == pytest.approx(0.004)
    assert (made.ttft.count, made.ttft.max_s) == (4, pytest.approx(1.5))


def test_G5_without_the_engines_counters_waste_is_what_the_clients_saw() -> None:
    made = figures(run_of([[attempt(101.0, 101.5, 104.0)], [attempt(102.0, 104.0, 106.0, output_tokens=30)]], []))
    assert (made.wasted_basis, made.wasted_ratio, made.engine) == ("clients", 0.75, None)


def test_G5_percentiles_are_nearest_rank() -> None:
    times = spread([float(number) for number in range(1, 101)])
    assert (times.p50_s, times.p95_s, times.p99_s, times.max_s) == (50.0, 95.0, 99.0, 100.0)
    assert spread([3.0]).p99_s == 3.0
    assert spread([]).p50_s is None


def test_G5_a_call_ends_as_its_last_attempt_did() -> None:
    refused = attempt(101.0, 0.0, 101.1, REFUSED)
    assert end_of(load.Call(0, Row(1.0, 1, 1), [refused, attempt(102.0, 102.1, 103.0)]), 1.0) == "good"
    assert end_of(load.Call(0, Row(1.0, 1, 1), [refused, refused]), 1.0) == "refused"


METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:generation_tokens_total{engine="0"} 1.5e+03
"""


def test_G5_the_engines_ranks_are_added_up_and_longer_names_left_out() -> None:
    async def run(metrics: str) -> EngineSample | None:
        async with serving(lambda number: []) as scripted:
            scripted.metrics = metrics
            watch = EngineWatch(scripted.url)
            try:
                return await watch.sample()
            finally:
                await watch.close()

    seen = asyncio.run(run(METRICS))
    assert seen is not None
    assert (seen.running, seen.waiting, seen.generation_tokens_total) == (5.0, 1.0, 1500.0)
    with pytest.raises(LoadError, match="num_requests_running"):
        asyncio.run(run("something_else 1\n"))


@pytest.mark.parametrize(("text", "rate"), [("11", (11.0, 1.0)), ("2x", (None, 2.0)), ("0.5x", (None, 0.5))])
def test_G5_a_rate_is_a_number_or_a_multiple(text: str, rate: tuple[float | None, float]) -> None:
    assert load.rate_of(text) == rate


@pytest.mark.parametrize("text", ["fast", "-1", "0", "x", "nan"])
def test_G5_a_bad_rate_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(LoadError, match="2x"):
        load.rate_of(text)


def called(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(verb)
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_G5_the_verb_prints_its_figures_and_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWORKS_API_KEY", "secret")
    picture = tmp_path / "out.png"

    async def run() -> tuple[tuple[int, str, str], wire.Scripted]:
        async with serving(lambda number: [wire.WHOLE]) as scripted:
            options = ["--rate", "20", "--seconds", "1", "--json", "--png", str(picture), "-H", "Headworks-Class: bulk"]
            return await asyncio.to_thread(called, scripted.url, *options), scripted

    (code, printed, _), scripted = asyncio.run(run())
    assert code == 0
    made = json.loads(printed)
    assert made["good"] == made["offered"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Authorization: Bearer secret\r\n" in scripted.heads[0]
    assert "Headworks-Class: bulk\r\n" in scripted.heads[0]


def test_G5_a_server_that_is_not_there_is_exit_2_with_a_sentence() -> None:
    code, _, told = called("http://127.0.0.1:9", "--seconds", "1")
    assert code == 2
    assert "http://127.0.0.1:9/v1/models" in told


@pytest.mark.parametrize("url", ["", "http://[::1", "ftp://host", "http://host:99999999", "http:///v1"])
def test_G5_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(LoadError, match="no http or https URL"):
        load.base_of(url)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("X", "a\nB: c", "may not stand in one"),
        ("é", "a", "may not stand in one"),
        ("X Y", "a", "may not stand in one"),
        ("content-length", "5", "written by the driver itself"),
        ("Host", "other", "written by the driver itself"),
    ],
)
def test_G5_a_header_that_cannot_be_sent_is_said_before_anything_is_asked(name: str, value: str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        asyncio.run(load.run(load.Plan(url="http://127.0.0.1:1", headers=((name, value),))))


def test_G5_gauges_that_do_not_answer_are_said_before_anything_is_offered() -> None:
    with pytest.raises(LoadError, match=r"http://127\.0\.0\.1:1/metrics does not answer"):
        offered(load.Plan(url="", rate_per_s=40.0, seconds=1.0, engine_metrics="http://127.0.0.1:1"), [wire.WHOLE])


def test_G5_a_picture_that_cannot_be_written_does_not_cost_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = offered(load.Plan(url="", rate_per_s=20.0, seconds=1.0), [wire.WHOLE])
    with pytest.raises(LoadError, match=r"--png .*: No such file or directory"):
        report(run, True, tmp_path / "nowhere" / "x.png")
    assert json.loads(capsys.readouterr().out)["good"] > 5

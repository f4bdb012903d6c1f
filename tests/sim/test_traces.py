"""Recorded traffic is read whole, scaled by one factor and offered the same way for the same seed (G2, G5)."""

import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from headworks.sim import traces


def test_G2_packaged_trace_has_its_published_figures() -> None:
    trace = traces.read("azure2023_conv")
    assert len(trace.rows) == 19_366
    assert trace.rate_per_s == pytest.approx(5.53, abs=0.01)
    prompts = sorted(row.prompt_tokens for row in trace.rows)
    outputs = sorted(row.output_tokens for row in trace.rows)
    assert (prompts[len(prompts) // 2], prompts[-1]) == (1_020, 14_050)
    assert (outputs[len(outputs) // 2], outputs[-1]) == (129, 1_000)


def test_G2_a_trace_that_says_who_asked_keeps_it() -> None:
    trace = traces.read("servegen_mlarge_1h")
    assert len(trace.rows) == 29_019
    assert trace.rate_per_s == pytest.approx(8.06, abs=0.01)
    assert len({row.client for row in trace.rows}) == 54
    offered = traces.replayed(traces.scaled(trace, 8_192), rate_per_s=8.0, seconds=10.0, seed=1)
    assert {row.client for row in offered} <= {row.client for row in trace.rows} and offered[0].client


def test_G2_every_named_trace_is_there_with_its_licence() -> None:
    sizes = {name: len(traces.read(name).rows) for name in traces.NAMES}
    assert sizes == {
        "azure2023_conv": 19_366,
        "azure2023_code": 8_819,
        "mooncake_conversation": 12_031,
        "servegen_mlarge_1h": 29_019,
        "servegen_r1_1h": 21_587,
    }
    for name in traces.NAMES:
        assert f"`{name}.csv.gz`" in traces.attribution()


def test_G2_mooncake_says_what_prompts_share_and_its_stamps_are_spread() -> None:
    """Of an unbounded cache's point of view 0.37 of its whole blocks have been seen before (as its publication says)."""
    trace = traces.read("mooncake_conversation")
    assert trace.prefix_tokens == 512
    seen: set[int] = set()
    blocks = hits = 0
    for row in trace.rows:
        whole = row.prefix[: row.prompt_tokens // 512]
        blocks += len(whole)
        hits += sum(block in seen for block in whole)
        seen.update(whole)
    assert hits / blocks == pytest.approx(0.37, abs=0.02)
    assert len({round(row.t_s, 1) for row in trace.rows}) > 8_000, "1,180 stamps before"


def test_G2_runs_of_prefix_blocks_are_read_and_lost_in_scaling(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("t_s,input_tokens,output_tokens,prefix_16\n0,64,1,0 7-9\n1,64,1,\n")
    trace = traces.read(str(path))
    assert [row.prefix for row in trace.rows] == [(0, 7, 8, 9), ()] and trace.prefix_tokens == 16
    replayed = traces.replayed(trace, rate_per_s=1.0, seconds=2.5, seed=1)
    assert {row.prefix for row in replayed} == {(0, 7, 8, 9), ()}
    scaled = traces.scaled(trace, 50)
    assert {row.prefix for row in scaled.rows} == {()} and scaled.prefix_tokens == 0


def test_G2_scaling_makes_the_longest_request_fit_and_keeps_proportions() -> None:
    trace = traces.Trace("t", [traces.Row(0.0, 8_000, 2_000), traces.Row(1.0, 800, 200), traces.Row(2.0, 1, 1)])
    scaled = traces.scaled(trace, 4_000)
    assert [(row.prompt_tokens, row.output_tokens) for row in scaled.rows] == [(3_040, 760), (304, 76), (1, 1)]


def test_G2_scaling_never_lengthens() -> None:
    trace = traces.Trace("t", [traces.Row(0.0, 10, 5), traces.Row(1.0, 20, 5)])
    assert traces.scaled(trace, 100_000).rows == trace.rows


def test_G5_poisson_has_the_rate_asked_for_and_repeats_by_seed() -> None:
    trace = traces.read("azure2023_conv")
    offered = traces.poisson(trace, rate_per_s=40.0, seconds=500.0, seed=1)
    assert len(offered) / 500.0 == pytest.approx(40.0, rel=0.03)
    gaps = [later.t_s - earlier.t_s for earlier, later in pairwise(offered)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 / mean == pytest.approx(1.0, abs=0.03)
    assert offered == traces.poisson(trace, rate_per_s=40.0, seconds=500.0, seed=1)
    assert offered != traces.poisson(trace, rate_per_s=40.0, seconds=500.0, seed=2)


def test_G5_replay_keeps_the_traces_own_gaps_and_goes_round_its_end() -> None:
    trace = traces.Trace("t", [traces.Row(0.0, 1, 1), traces.Row(1.0, 2, 2), traces.Row(4.0, 3, 3)])
    # Three rows in four seconds are 0.75 a second; at 1.5 a second every gap is half as long.
    offered = traces.replayed(trace, rate_per_s=1.5, seconds=5.0, seed=0)
    assert offered[0].t_s == 0.0
    gaps = [round(later.t_s - earlier.t_s, 6) for earlier, later in pairwise(offered)]
    order = [row.prompt_tokens for row in offered]
    expected = {1: 0.5, 2: 1.5, 3: 0.666667}
    assert gaps == [expected[row] for row in order[:-1]]
    assert len(offered) >= 5


def test_G2_a_file_is_read_gzipped_or_not(tmp_path: Path) -> None:
    text = "t_s,input_tokens,output_tokens\n1.5,10,2\n0.5,20,4\n"
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    rows = [traces.Row(0.5, 20, 4), traces.Row(1.5, 10, 2)]
    assert traces.read(str(tmp_path / "a.csv")).rows == rows
    assert traces.read(str(tmp_path / "b.csv.gz")).rows == rows


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("t_s,input_tokens\n0,1\n1,1\n", "output_tokens"),
        ("t_s,input_tokens,output_tokens\n0,1,1\nx,1,1\n", "line 3"),
        ("t_s,input_tokens,output_tokens\n0,1,1\n", "fewer than two"),
    ],
)
def test_G2_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(traces.TraceError, match=told):
        traces.read(str(tmp_path / "bad.csv"))


def test_G2_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(traces.TraceError, match="azure2023_conv"):
        traces.read("nowhere")

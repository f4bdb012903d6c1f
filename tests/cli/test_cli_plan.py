"""`headworks plan` and the pages of `plan` and `sim`, as somebody at a terminal has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headworks.cli.main import run

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from logged_story import logged, overload

NEW = """
log: {decisions: "LOG"}
classes:
  interactive: {slo: {ttft_s: 1.0}, queue: {wait_s_max: 1.0}}
  bulk: {slo: {ttft_s: null}, queue: {wait_s_max: 8.0}}
tenants:
  acme: {keys: ["env:NO_SUCH_KEY"], active_tokens_max: 3000}
  quiet: {keys: ["env:NOR_THIS_KEY"]}
  batchco: {keys: ["env:NOR_THAT_KEY"], class: bulk}
pools:
  main:
    models: [model]
    replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]
    active_requests_max: 4
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    logged(directory, overload(duration_s=10))
    return directory


@pytest.fixture
def new(log: Path, tmp_path: Path) -> str:
    path = tmp_path / "new.yaml"
    path.write_text(NEW.replace("LOG", str(log)))
    return str(path)


def test_G2_the_control_is_the_first_line(new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", new]) == 0
    out = capsys.readouterr().out
    first, second, *rest = out.splitlines()
    assert first.startswith("Control: under the log's own policy ")
    assert first.endswith("(100.0 %) are the same again.")
    assert second.startswith("Under policy ")
    told = "\n".join(rest)
    for word in ("interactive", "bulk", "acme", "quiet", "batchco", "completed", "refused: queue_delay_exceeded"):
        assert word in told
    assert "Under the new policy:" in told
    assert "it was refused at once: it might have had to wait" in told


def test_G2_json_and_page_have_the_same_numbers(new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", new, "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["control"]["reproduced"] == found["control"]["compared"] > 300
    assert set(found["classes"]) == {"interactive", "bulk"}
    figures = found["all"]["all"]
    assert figures["plan"]["in_time"] < figures["log"]["in_time"], "half the places"
    for example in found["examples"]:
        assert example["logged_story"][0].startswith(f"Request {example['id']} of tenant {example['tenant']}")
        assert example["planned_story"][0].startswith("At ")
    text = page.read_text()
    assert f"{figures['log']['in_time']:,} → {figures['plan']['in_time']:,}" in text
    assert f"{found['changed']:,} of {figures['arrivals']:,}" in text
    assert all(example["id"] in text for example in found["examples"])
    assert "http" not in text


def test_G2_a_log_that_is_not_reproduced_does_not_hold(
    log: Path, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in log.glob("*.jsonl"):
        (other / path.name).write_text(path.read_text().replace('"active_requests_max":8', '"active_requests_max":5'))
    assert run(["plan", new, "--log", str(other)]) == 1
    out = capsys.readouterr().out
    assert "less than 99.0 %: what follows is not to be relied on." in out
    assert " × completed, and again: refused: queue_delay_exceeded" in out


def test_G2_what_cannot_be_planned_says_why(new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(["plan", new, "--log", str(tmp_path)]) == 2
    assert "has no decisions-*.jsonl" in capsys.readouterr().err
    assert run(["plan", new, "--since", "2999"]) == 2
    assert "no request has ended" in capsys.readouterr().err
    assert run(["plan", new, "--html", str(tmp_path / "no" / "such.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    bare = tmp_path / "bare.yaml"
    bare.write_text(NEW.replace('"LOG"', "null"))
    assert run(["plan", str(bare)]) == 2
    assert "name one with --log" in capsys.readouterr().err
    bare.write_text(NEW.replace("active_requests_max", "active_request_max"))
    assert run(["plan", str(bare)]) == 2
    assert "active_requests_max" in capsys.readouterr().err


def test_G1_sim_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, page = tmp_path / "s.yaml", tmp_path / "s.html"
    scenario.write_text(
        "what: 'Ten against twenty'\nduration_s: 3\nengines: {kind: fixed_rate, settings: {rate_per_s: 10, servers: 1, "
        "prefill_ratio: 0.15}}\npolicy: {pool: {active_requests_max: 1}}\ndisciplines: {a: {kind: fifo}, b: {kind: wfq}}\n"
        "traffic: [{rate_per_s: 20}]\n"
    )
    assert run(["sim", str(scenario), "--html", str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disciplines"]["a"]["series"]["bin_s"] == 0.5
    text = page.read_text()
    assert "<h1>Ten against twenty</h1>" in text
    assert text.count("<figure>") == 2 + 3 + 1
    assert run(["sim", str(scenario), "--html", str(tmp_path / "no" / "such.html")]) == 2
    assert run(["sim", "--campaign", "--html", str(page)]) == 2

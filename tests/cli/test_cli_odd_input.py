"""What a verb says of names, files and addresses that nobody expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from headworks.cli.main import run
from headworks.cli.plan import policy_of

ENGINE = "pools:\n  llama:\n    replicas: [{url: 'http://127.0.0.1:1', engine: vllm, api_key: 'env:ENGINE_KEY'}]\n"


@pytest.mark.parametrize("ledger", ["", "ledger: {url: 'env:LEDGER_URL'}\n", "ledger:\n  url: env:LEDGER_URL\n"])
def test_G2_a_plan_needs_no_address_that_is_kept_out_of_the_file(ledger: str, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(ledger + ENGINE)
    policy, directory = policy_of(file)
    assert list(policy.pools) == ["llama"]
    assert directory is not None


def test_G2_a_log_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, log = tmp_path / "new.yaml", tmp_path / "log"
    file.write_text(ENGINE)
    log.mkdir()
    (log / "decisions-1.jsonl").symlink_to(tmp_path / "gone")
    assert run(["plan", str(file), "--log", str(log)]) == 2
    assert "decisions-1.jsonl cannot be read" in capsys.readouterr().err


def test_G1_names_of_a_scenario_are_names_and_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "scenarios" / "burst.yaml").read_text().replace("seed: 1", "seed: 2", 1)
    file = tmp_path / "odd.yaml"
    file.write_text(text.replace("\ndisciplines:\n  ", "\ndisciplines:\n  '[/b]odd': {kind: fifo}\n  ", 1))
    run(["sim", str(file)])
    assert "[/b]odd" in capsys.readouterr().out


def test_C4_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "http://127.0.0.1:9", "--out", str(tmp_path / "none" / "x.yaml")]) == 2
    assert "no directory" in capsys.readouterr().err

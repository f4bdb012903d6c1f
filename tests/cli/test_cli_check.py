"""`headworks check` and `headworks schema` as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headworks.cli.main import run

GOOD = """\
pools:
  llama:
    models: [a]
    active_tokens_max: 40000
    replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]
tenants:
  acme: {keys: ["env:CHECK_ACME_KEY"], active_tokens_max: 15000}
"""
KEY = "acme-0123456789abcdef0123"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECK_ACME_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "h.yaml"


def test_a_good_file_shows_what_will_be_enforced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert run(["check", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "enforces on 127.0.0.1:8080; admin on 127.0.0.1:8081 without a key; ledger sqlite:headworks.db;" in text
    assert "sqlite:headworks.db; decisions in decisions/" in text
    assert "class interactive share 10, at least 20%; first token ≤ 1 s; waits ≤ 0.5 s, 500 in queue;" in text
    assert "; usage in usage/" in text
    assert (
        "tenant acme 1 key; share 1; interactive unless it asks for one of interactive, batch, bulk; any model; ≤ 15000 tokens"
        in text
    )
    assert "pool llama a; ≤ 40000 tokens, sequences as the engines say; KV ≤ 0.85; next by wfq;" in text
    assert "replica llama/0 vllm at http://127.0.0.1:8000; proves a stop by E1, E3a, E3b, E4" in text
    assert f"{file} can be used; no warnings." in text
    assert KEY not in text


def test_rates_and_quotas_are_said_with_the_sizes_in_force(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = """, rate: {tokens_per_s: 200, debt_tokens_max: 50, requests_per_s: 2, burst_requests: 3},
    client_rate: {requests_per_s: 0.5, retry_ratio: 0.1}, quota: {period: day, tokens: 5000, money: 2.5}, over_quota: demote}"""
    file.write_text(GOOD.replace("active_tokens_max: 15000}", "active_tokens_max: 15000" + limits))
    assert run(["check", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "200 tokens/s, 2000 at once and 50 borrowed, 2 requests/s, 3 at once" in text
    assert "0.5 requests/s by each key, 5 at once, retries ≤ 10% of first attempts" in text
    assert "≤ 5,000 tokens a day, ≤ 2.5 money a day" in text
    assert "tenants.acme.quota.money: models without price_per_mtoken cost nothing: a" in text


def test_a_bad_file_shows_each_problem_on_one_line_and_does_not_hold(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD.replace("active_tokens_max: 15000", "activ_tokens_max: 15000").replace("40000", "-1"))
    assert run(["check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = f"problem {file}"
    assert f"{place}:7: tenants.acme.activ_tokens_max: is not a known key; did you mean active_tokens_max?" in lines
    assert any(line.startswith(f"{place}:4: pools.llama.active_tokens_max: -1 was given; auto or a whole") for line in lines)
    assert lines[-1] == f"{file} cannot be used: 2 problems."


def test_a_file_that_cannot_be_read_could_not_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(file)]) == 2
    assert f"problem {file}: cannot be read: No such file or directory" in capsys.readouterr().out


def test_json_has_problems_warnings_and_what_will_be_enforced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert run(["check", str(file), "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert (found["holds"], found["problems"], len(found["warnings"])) == (True, [], 0)
    assert found["enforced"]["tenants"]["acme"]["active_tokens_max"] == 15_000
    assert found["enforced"]["pools"]["llama"]["replicas"]["llama/0"]["evidence"] == ["E1", "E3a", "E3b", "E4"]
    assert KEY not in text

    file.write_text(GOOD + "sever: {}\n")
    assert run(["check", str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["enforced"] is None
    assert found["problems"] == [
        {"file": str(file), "line": 8, "path": "sever", "text": "is not a known key; did you mean server?"}
    ]


def test_H1_exposed_has_to_be_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("server: {listen: '0.0.0.0:8080'}\n" + GOOD)
    assert run(["check", str(file)]) == 1
    assert "0.0.0.0:8080 can be reached from other machines, without TLS" in capsys.readouterr().out
    assert run(["check", str(file), "--exposed"]) == 0


def test_the_schema_is_json_and_knows_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert list(found["properties"]) == [
        "server", "ledger", "usage", "log", "telemetry", "classes", "tenants", "jwt", "models", "pools", "spill",
    ]  # fmt: skip


def test_H2_an_issuer_of_tokens_is_shown_and_a_file_that_has_no_key_of_its_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jwks = file.parent / "jwks.json"
    jwks.write_text('{"keys": []}')
    file.write_text(GOOD + f"jwt: {{issuer: 'https://login.example', audience: hw, keys_file: {jwks}}}\n")
    assert run(["check", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"jwt.keys_file: no token can be verified: {jwks}: none of its 0 keys is one for RS256 or ES256" in said
    assert "tokens of https://login.example for hw; ledger" in said


def test_C1_a_tokenizer_that_cannot_be_used_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = file.parent / "tokenizer.json"
    broken.write_text("{}")
    file.write_text(GOOD + f"models:\n  a: {{tokenizer: {broken}}}\n")
    assert run(["check", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"models.a.tokenizer: a gateway will not start: {broken} is not a tokenizer file" in text
    assert "models.a.tokenizer: accepted" not in text

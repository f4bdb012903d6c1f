"""Money with real processes: a gateway is killed under load and started again, and the statement still adds up (F7)."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from processes import ask, configuration, engine, free_port, gateway, until

PRICED = {"gpu_price_per_h": 5.12, "gpus": 8}
NANO_PER_S = 8 * 5_120_000_000 / 3600


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headworks.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def load(url: str, answers: int) -> None:
    """Some answers, and one client that leaves in the middle of its own."""
    for number in range(answers):
        answer = ask(url, tokens=8 + number)
        assert answer.status_code == 200, answer.text
    with httpx.Client(timeout=30, trust_env=False) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "one"}], "stream": True, "max_tokens": 3000}
        with client.stream("POST", url + "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())


def killed_under_load(file: Path, upstream: Any) -> None:
    with gateway("--config", str(file)) as front:
        load(front.url, 5)
        for _ in range(3):
            threading.Thread(target=_stream, args=(front.url,), daemon=True).start()
        until(lambda: upstream.inside() >= 3)
        front.send(signal.SIGKILL)
        front.ended()


def _stream(url: str) -> None:
    try:
        ask(url, tokens=3000)
    except httpx.HTTPError:
        return


def test_F7_after_a_kill_and_a_restart_the_journal_is_the_statement_is_the_cost_of_the_pool(tmp_path: Path) -> None:
    begun_s = time.time()
    with engine(0, "--speed", "0.3") as upstream:
        pools = {"llama": {**PRICED, "replicas": [{"url": upstream.url, "engine": "vllm"}]}}
        ledger = {"url": f"sqlite:{tmp_path}/ledger.db"}
        patient = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}}}
        unhurried = {"loop_lag_shed_bulk_s": 50, "loop_lag_shed_s": 60}  # on a machine that runs many tests at once
        server = {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "guard": unhurried}
        file = configuration(tmp_path, upstream.url, ledger=ledger, pools=pools, classes=patient, server=server)
        killed_under_load(file, upstream)
        with gateway("--config", str(file)) as front:
            until(lambda: front.charged() == 0)
            load(front.url, 5)
            until(lambda: front.charged() == 0)
            text = front.get("/metrics").text
            running = verb("cost", "--admin", front.admin)
            front.send(signal.SIGTERM)
            assert front.ended() == 0
    day = time.strftime("%Y-%m-%d", time.gmtime(begun_s))
    said = verb("cost", day, "--config", str(file), "--json")
    assert said.returncode == 0, said.stdout + said.stderr
    found = json.loads(said.stdout)
    (row,), pool = found["rows"], found["pools"]["llama"]
    assert row["executions"] >= 10 and row["wasted_nanomoney"] > 0 < row["used_nanomoney"]
    assert row["used_nanomoney"] + row["wasted_nanomoney"] + pool["idle_nanomoney"] == pool["total_nanomoney"]
    lasted_s = time.time() - begun_s
    assert 0.3 * lasted_s * NANO_PER_S < pool["total_nanomoney"] < (lasted_s + 1) * NANO_PER_S, "the time without a gateway too"
    journal = [json.loads(line) for path in (tmp_path / "usage").glob("*.jsonl") for line in path.read_text().splitlines()]
    ended = [line for line in journal if "execution" in line]
    assert len({line["execution"] for line in ended}) == len(ended) == row["executions"], "each once"
    assert 'headworks_cost_total{tenant="anonymous",kind="wasted"}' in text
    assert running.returncode == 0 and json.loads(running.stdout)["rows"][0]["executions"] == row["executions"]
    lines = list(csv.DictReader(io.StringIO(verb("cost", day, "--config", str(file), "--csv").stdout)))
    assert sum(int(line["cost"].replace(".", "")) for line in lines) > 0
    shown = verb("cost", day, "--config", str(file), "--html", str(tmp_path / "cost.html"))
    assert "(idle)" in shown.stdout and "All rows and idle time add up" in shown.stdout
    assert "<td>anonymous</td>" in (tmp_path / "cost.html").read_text()


def test_F7_what_cannot_be_stated_is_said_on_one_line(tmp_path: Path) -> None:
    for words, text in (
        (("cost", "--usage", str(tmp_path / "none")), "is no directory; a usage journal is"),
        (("cost", "november", "--usage", str(tmp_path)), "'november' is no period"),
        (("cost", "--by", "colour", "--usage", str(tmp_path)), "'colour' is none of tenant, client, model, pool"),
    ):
        said = verb(*words)
        assert said.returncode == 2 and text in said.stderr and len(said.stderr.splitlines()) == 1

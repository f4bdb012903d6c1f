"""What `headworks serve` has loaded when it serves: nothing that only reading a configuration takes, or another verb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

LEFT_OUT = frozenset(
    {
        *("pydantic", "pydantic_core", "yaml", "typer", "rich", "textual", "jsonschema", "zoneinfo", "numpy", "matplotlib"),
        *(
            "opentelemetry",
            "grpc",
            "google",
            "valkey",
            "redis",
            "tokenizers",
            "httpx",
            "httpcore",
            "h11",
            "anthropic",
            "openai",
        ),
        *("headworks.config.schema", "headworks.config.values", "headworks.config.checks", "headworks.cli.main"),
        *("headworks.sim", "headworks.tools", "headworks.testing", "headworks.client", "headworks.ledgers.valkey"),
    }
)


def loaded_by_a_gateway(directory: Path) -> set[str]:
    """By Python's own list of imports, of the last program that the process was."""
    file = directory / "headworks.yaml"
    file.write_text(
        "server: {listen: '127.0.0.1:0', admin: '127.0.0.1:0'}\nledger: {url: 'memory:'}\nusage: {path: usage}\n"
        "log: {decisions: decisions}\npools: {llama: {replicas: [{url: 'http://127.0.0.1:9', engine: vllm}]}}\n"
    )
    command = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", str(file), "--json"]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    with (directory / "said").open("w+") as said:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, cwd=directory, env=environment)
        assert child.stdout is not None and b'"listening"' in child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        child.stdout.close()
        said.seek(0)
        programs = said.read().split("import time: self [us] | cumulative | imported package\n")
    lines = [line for line in programs[-1].splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_J11_a_gateway_that_serves_has_loaded_only_what_serving_takes(tmp_path: Path) -> None:
    loaded = loaded_by_a_gateway(tmp_path)
    assert {"headworks.gateway.app", "headworks.gateway.proxy", "starlette.applications"} <= loaded
    assert not {name for name in loaded if name in LEFT_OUT or name.split(".")[0] in LEFT_OUT}
    beside = {"headworks.sim", "headworks.tools", "headworks.testing", "headworks.client"}
    assert not {name for name in loaded if ".".join(name.split(".")[:2]) in beside}


def test_J11_nothing_is_imported_from_the_directory_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "asyncio.py").write_text("raise SystemExit(9)\n")
    file = tmp_path / "headworks.yaml"
    file.write_text(
        "server: {listen: '127.0.0.1:0', admin: '127.0.0.1:0'}\nledger: {url: 'memory:'}\n"
        "pools: {llama: {replicas: [{url: 'http://127.0.0.1:9', engine: vllm}]}}\n"
    )
    command = [sys.executable, "-P", "-m", "headworks.cli.main", "serve", "--config", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as child:
        assert child.stdout is not None and '"listening"' in child.stdout.readline()
        child.send_signal(signal.SIGHUP)
        assert child.stdout.readline().startswith("reloaded, policy")
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 0

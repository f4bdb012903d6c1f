"""The frame of the command line: what is listed, what is loaded, and what the exit status says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from headworks import RUNS_AS
from headworks.cli.main import VERBS, Verb, application, run

SMALLEST = 'pools: {llama: {replicas: [{url: "http://127.0.0.1:1", engine: vllm}]}}\n'


def test_help_lists_every_verb_that_is_installed_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert (f"│ {verb.name} " in text) == (find_spec(verb.module) is not None)


def test_every_listed_verb_is_a_function_or_has_verbs_of_its_own() -> None:
    for verb in VERBS:
        if find_spec(verb.module) is not None:
            module = import_module(verb.module)
            assert callable(getattr(module, verb.name, None)) or module.app.registered_commands


def test_every_verb_takes_json(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        if find_spec(verb.module) is None or hasattr(import_module(verb.module), "app"):
            continue
        assert run([verb.name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out, verb.name


def test_help_loads_no_verb_and_no_configuration() -> None:
    program = "import sys; from headworks.cli.main import run; run(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    loaded = found.stderr.split()
    assert "headworks.cli.main" in loaded
    ours = [name for name in loaded if name.startswith("headworks.") and not name.startswith("headworks.cli")]
    assert ours == ["headworks.compiled"]
    assert [verb.module for verb in VERBS if verb.module in loaded] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"0.1.0 ({RUNS_AS})\n"


@pytest.mark.parametrize("words", [["no-such-verb"], ["check", "--no-such-option"], ["check", "a", "b"]])
def test_what_cannot_be_understood_could_not_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "Usage" in capsys.readouterr().err


def test_a_verb_that_is_not_installed_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Verb("no_such_verb", "Ask", "Nothing.")
    assert find_spec(missing.module) is None
    assert run([missing.name]) == 2
    assert "No such command" in capsys.readouterr().err


def test_only_the_verb_asked_for_is_attached() -> None:
    commands = {command.name: command.callback for command in application(["schema"]).registered_commands}
    assert commands["schema"] is import_module("headworks.cli.schema").schema
    assert commands["check"] is not import_module("headworks.cli.check").check


@pytest.mark.parametrize("words", [["schema"], ["check", "headworks.yaml"]], ids=lambda words: words[0])
def test_a_reader_that_has_seen_enough_is_no_answer_and_no_fault(words: list[str], tmp_path: Path) -> None:
    """1 would say that the file does not hold, and 0 that it does: both would be said of files of both kinds."""
    (tmp_path / "headworks.yaml").write_text(SMALLEST)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headworks.cli.main", *words]
    with os.fdopen(writing, "wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, timeout=30, check=False)
    assert ended.returncode == 141
    assert b"Traceback" not in ended.stderr and b"ignored" not in ended.stderr


@pytest.mark.parametrize("taken", ["--listen", "--admin"])
def test_serve_says_which_port_is_taken_by_another(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        free = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0"} | {taken: address}
        words = ["serve", "--upstream", "http://127.0.0.1:1", *(word for pair in free.items() for word in pair)]
        command = [sys.executable, "-m", "headworks.cli.main", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert address in line and "Address already in use" in line and "--listen and --admin name others" in line


def test_serve_says_which_directory_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    file = tmp_path / "headworks.yaml"
    file.write_text(f"{SMALLEST}ledger: {{url: 'memory:'}}\nlog: {{decisions: {tmp_path}/a-file/decisions}}\n")
    command = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (2, f"headworks: {tmp_path}/a-file/decisions: Not a directory\n")

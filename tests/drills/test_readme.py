"""Every command of the README, run as it stands there, but for addresses: another engine may be at those."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import engine, gateway

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
ENGINE_URL, FRONT_URL = "http://127.0.0.1:8000", "http://127.0.0.1:8080"
ANYWHERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
HEADWORKS = ".venv/bin/headworks"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def words(start: str) -> list[str]:
    """The one command that starts so, without its program."""
    (line,) = [line for line in commands() if line.startswith(start)]
    return shlex.split(line)[1:]


def ran(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headworks.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def test_no_command_of_the_readme_goes_untried() -> None:
    known = (
        "./scripts/",
        "curl ",
        "export ",
        f"{HEADWORKS} serve --",
        f"{HEADWORKS} check ",
        f"{HEADWORKS} ledger ",
        f"{HEADWORKS} sim ",
    )
    assert [line for line in commands() if not line.startswith(known)] == []


def test_the_scripts_are_there_and_ci_runs_the_same_test_command() -> None:
    scripts = [line.removeprefix("./") for line in commands() if line.startswith("./")]
    assert scripts == ["scripts/demo", "scripts/test"]
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK)
    assert "./scripts/test" in (ROOT / ".ci" / "run").read_text()


def test_serve_in_two_lines_then_asking_about_it() -> None:
    with engine() as upstream:
        serve = [word.replace(ENGINE_URL, upstream.url) for word in words(f"{HEADWORKS} serve --upstream")]
        with gateway(*serve[1:], *ANYWHERE) as front:
            if shutil.which("curl"):
                asked = [word.replace(FRONT_URL, front.url) for word in words("curl")]
                answer = subprocess.run(["curl", "--silent", *asked], capture_output=True, text=True, timeout=30, check=True)
                assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 16
            for line in (f"{HEADWORKS} ledger show", f"{HEADWORKS} ledger audit"):
                assert ran([*words(line), "--admin", front.admin]).returncode == 0


def test_the_file_of_the_readme_can_be_used(tmp_path: Path) -> None:
    (file,) = blocks("yaml")
    keys = dict(pair.split("=") for pair in words("export"))
    with engine() as upstream:
        (tmp_path / "headworks.yaml").write_text(file.replace(ENGINE_URL, upstream.url))
        path = {"headworks.yaml": str(tmp_path / "headworks.yaml")}
        check = [path.get(word, word) for word in words(f"{HEADWORKS} check")]
        found = ran(check, **keys)
        assert (found.returncode, "can be used" in found.stdout) == (0, True), found.stdout
        serve = [path.get(word, word) for word in words(f"{HEADWORKS} serve --config")]
        with gateway(*serve[1:], *ANYWHERE, directory=tmp_path, **keys) as front:
            assert front.get("/readyz").status_code == 200


def test_the_scenario_of_the_readme_holds() -> None:
    assert ran(words(f"{HEADWORKS} sim")).returncode == 0


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`headworks ([a-z]+)", README))))
def test_every_verb_the_readme_names_is_there(name: str) -> None:
    verbs = {path.stem for path in (ROOT / "src" / "headworks" / "cli").glob("*.py")}
    assert name in verbs

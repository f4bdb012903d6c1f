"""Every block of code in the docs: what can run is run here, and what cannot stands in a list with the reason.

A block is known by its page and how it begins. Configurations and pieces of them pass the check, JSON is JSON, Python runs
against a gateway of its own, command lines are taken by the verbs that they call, and those of an operator are run in order.
`tests/drills/test_readme.py` runs the README's commands as they stand there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from processes import Engine, Gateway, configuration, engine, gateway

from headworks.cli.main import application
from headworks.config.load import load_bytes
from headworks.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").rglob("*.md"))
KEY, ADMIN = "acme-key-of-the-docs-0123456789", "admin-key-of-the-docs-0123456789"
NOT_RUN = {
    ("docs/architecture.md", "cli "): "a drawing",
    ("README.md", "HTTP/1.1 429"): "the head of an answer",
    ("docs/sessions.md", "POST /admit/session"): "an exchange, of which tests/gateway/test_admit.py holds each line",
    ("docs/autoscaling.md", "apiVersion: keda.sh"): "a manifest of KEDA's: needs a cluster; its YAML is read",
    ("docs/autoscaling.md", "triggers:"): "a piece of one",
    ("docs/envoy.md", "rate_limits:"): "a piece of Envoy's configuration; tests/gateway/test_envoy_limits.py runs one like it",
    ("docs/life-of-a-request.md", "stateDiagram-v2"): "made from the table in the code",
}
OF_OTHERS = {
    "helm": "needs a cluster; tests/test_helm.py renders the chart",
    "curl": "tests/drills/test_readme.py asks so",
    "export": "sets what tests/drills/test_readme.py is given",
    "cat": "shows a file",
    "pytest": "is a part of the suite",
    "scripts/small-scope": "takes minutes; tests/core/test_small_scope.py goes less deep",
    "scripts/mutation": "takes an hour of a machine; tests/mutation/test_mutants.py tries the command",
}


@dataclass
class Block:
    page: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page} {self.text.strip().splitlines()[0][:40]}"

    @property
    def why_not(self) -> str | None:
        known = [place for place in NOT_RUN if place[0] == self.page and self.text.strip().startswith(place[1].strip())]
        return NOT_RUN[known[0]] if known else None


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.S | re.M):
            yield Block(page.relative_to(ROOT).as_posix(), found[1], found[2])


def each(*languages: str) -> Any:
    found = [block for block in blocks() if block.language in languages and block.why_not is None]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.name)


def lines() -> list[str]:
    """Commands, with and without a prompt, with their page."""
    found = []
    for block in blocks():
        if block.why_not is None and block.language in ("", "sh"):
            given = block.text.splitlines()
            prompted = [line.removeprefix("$ ") for line in given if line.startswith("$ ")]
            found += [f"{block.page}: {line}" for line in prompted or given if line.strip()]
    return found


# no block is left out


def test_every_block_is_of_a_kind_that_is_run_or_has_its_reason() -> None:
    unknown = [
        block.name for block in blocks() if block.language not in ("", "sh", "yaml", "python", "json") and not block.why_not
    ]
    assert unknown == []
    first = {line.partition(": ")[2].split()[0] for line in lines()}
    programs = {"headworks", ".venv/bin/headworks", "pip", *OF_OTHERS} | {one for one in first if one.startswith("./scripts/")}
    assert first - programs == set()


def test_no_reason_is_kept_for_a_block_that_is_gone() -> None:
    used = {
        place for place in NOT_RUN for block in blocks() if block.page == place[0] and block.text.strip().startswith(place[1])
    }
    assert set(NOT_RUN) - used == set()
    assert {one for one in OF_OTHERS if not any(line.partition(": ")[2].startswith(one) for line in lines())} == set()


# configurations


BASE: dict[str, Any] = {
    "pools": {
        "llama": {"models": ["llama-1b", "llama-vision"], "replicas": [{"url": "http://127.0.0.1:8000", "engine": "vllm"}]},
    },
    "tenants": {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk"}},
    "spill": {
        "cloud": {
            "url": "https://api.example.com/v1",
            "model": "large",
            "price_per_mtoken": {"prompt": 1, "output": 2},
            "money_per_day_max": 5,
        }
    },
}


def merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merged(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


@each("yaml")
def test_a_configuration_or_a_piece_of_one_can_be_used(block: Block) -> None:
    given = yaml.safe_load(block.text)
    assert set(given) <= set(Config.model_fields), "not one of ours: it needs a reason"
    whole = block.text if all("replicas" in pool for pool in given.get("pools", {"": {}}).values()) else None
    base = {key: value for key, value in BASE.items() if key != "spill" or "spill" in block.text}
    text = whole or yaml.safe_dump(merged(base, given))
    environment = dict.fromkeys(re.findall(r"env:(\w+)", text), "")
    environment = {name: f"{name.lower()}-of-the-docs-0123456789-0123456789" for name in environment}
    loaded = load_bytes(text.encode(), block.page, environment)
    assert [str(problem) for problem in loaded.problems] == []


@each("json")
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


# command lines


def understood(words: list[str]) -> None:
    """By the verb that it calls, with all its options: raises what a user would be told."""
    command: Any = typer.main.get_command(application(words))
    context = None
    while True:
        context = command.make_context(command.name, words, parent=context)
        if not hasattr(command, "get_command"):
            return
        rest = [*context._protected_args, *context.args]
        command, words = command.get_command(context, rest[0]), rest[1:]
        assert command is not None, rest


@pytest.mark.parametrize("line", lines())
def test_a_command_line_is_understood(line: str) -> None:
    words = shlex.split(line.partition(": ")[2].partition(" # ")[0])
    if words[0] in ("headworks", ".venv/bin/headworks"):
        understood(words[1 : words.index(">")] if ">" in words else words[1:])
    elif words[0] == "pip":
        extra = re.fullmatch(r"headworks\[(\w+)\]", words[2])
        assert words[:2] == ["pip", "install"] and extra
        assert extra[1] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    elif words[0].startswith("./scripts/"):
        assert os.access(ROOT / words[0], os.X_OK)
    else:
        assert words[0] in OF_OTHERS


def test_a_command_line_that_no_verb_takes_is_found() -> None:
    for wrong in (
        ["keys", "turn"],
        ["keys", "add", "--tenants", "acme"],
        ["ledger", "release", "x"],
        ["plan"],
        ["cost", "a", "b"],
    ):
        with pytest.raises((Exception, SystemExit)):
            understood(wrong)


# what runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Gateway, Path]]:
    """A gateway with keys, before a fake engine whose model is called as in the docs."""
    folder = tmp_path_factory.mktemp("docs")
    keys = {"ACME_KEY": KEY, "HEADWORKS_ADMIN_KEY": ADMIN}
    with engine() as upstream:
        file = configuration(
            folder,
            upstream.url,
            server={"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "admin_key": "env:HEADWORKS_ADMIN_KEY"},
            ledger={"url": f"sqlite:{folder / 'ledger.db'}"},
            tenants={"acme": {"keys": ["env:ACME_KEY"]}},
            log={"decisions": str(folder / "decisions")},
        )
        with gateway("--config", str(file), directory=folder, **keys) as front:
            yield upstream, front, folder


def ran(command: list[str], folder: Path, **environment: str) -> str:
    given = {**os.environ, "ACME_KEY": KEY, "HEADWORKS_ADMIN_KEY": ADMIN, **environment}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@each("python")
def test_python_runs(block: Block, place: tuple[Engine, Gateway, Path]) -> None:
    _, front, folder = place
    program = block.text.replace("http://127.0.0.1:8080", front.url)
    if "path" in program and "path =" not in program:
        (log,) = folder.glob("decisions/*")
        program = f"from pathlib import Path\npath = Path({str(log)!r})\n{program}"
    said = ran([sys.executable, "-c", program], folder)
    assert "come back in" not in said and ("print(" not in program or said.strip())


def test_what_an_operator_types_is_done(place: tuple[Engine, Gateway, Path]) -> None:
    _, front, folder = place
    page = (ROOT / "docs" / "operating.md").read_text()
    (keys,) = [one for one in re.findall(r"^```sh\n(.*?)^```$", page, re.S | re.M) if "keys rotate" in one]
    (orders,) = [one for one in re.findall(r"^```sh\n(.*?)^```$", page, re.S | re.M) if "tenant freeze" in one]

    def typed(line: str, *more: str) -> str:
        words = shlex.split(line)[1:]
        words = words[: words.index(">")] if ">" in words else words
        return ran([sys.executable, "-m", "headworks.cli.main", *words, "--admin", front.admin, *more], folder)

    add, listed, rotate, revoke = keys.splitlines()
    assert typed(add.replace("llama-3.1-8b", "tiny")).startswith("hw-")
    (kept,) = json.loads(typed(listed, "--json"))["keys"]
    assert typed(rotate.replace("5f0c9e1d7a42", kept["id"])).startswith("hw-")
    typed(revoke.replace("5f0c9e1d7a42", kept["id"]))
    freeze, observe, drain, _release = orders.splitlines()
    typed(freeze)
    typed(observe)
    typed(drain)
    told = json.loads(
        ran([sys.executable, "-m", "headworks.cli.main", "replica", "list", "--json", "--admin", front.admin], folder)
    )
    assert "draining" in json.dumps(told)

"""Compiled modules run only as what their sources say: while they were made of these very sources, and to the same effect."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

import headworks
from headworks import compiled

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = 40
FIRST_SEED = 20_261_130
EXCHANGES = ["tests/compiled/exchanges.py"]

needs_compiled = pytest.mark.skipif(not compiled.is_current(), reason="nothing is compiled here: scripts/compile")


def said(program: list[str], *, pure: str = "", path: Path = ROOT / "src") -> bytes:
    """What a Python of its own prints."""
    environment = {**os.environ, "HEADWORKS_PURE": pure, "PYTHONPATH": str(path)}
    found = subprocess.run([sys.executable, *program], env=environment, cwd=ROOT, capture_output=True, timeout=100)
    assert found.returncode == 0, found.stderr.decode()
    return found.stdout


FOUND = (
    "import headworks; from importlib.util import find_spec; print(headworks.RUNS_AS, find_spec('headworks.core.gate').origin)"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources, and beside them what passes for compiled modules: nobody loads them here."""
    package = tmp_path / "headworks"
    package.mkdir()
    for name in ("__init__.py", "compiled.py"):
        shutil.copy(compiled.PACKAGE / name, package)
    shutil.copytree(compiled.PACKAGE / "core", package / "core", ignore=shutil.ignore_patterns("__pycache__"))
    made = package / "_compiled"
    made.mkdir()
    for name in compiled.files():
        (made / f"{name}{compiled.SUFFIX}").touch()
    (made / "stamp").write_bytes(said(["-c", "from headworks import compiled; print(compiled.stamp(), end='')"], path=tmp_path))
    return tmp_path


def test_what_was_made_of_these_sources_runs(copy: Path) -> None:
    expected = f"compiled {copy}/headworks/_compiled/headworks.core.gate{compiled.SUFFIX}\n"
    assert said(["-c", FOUND], path=copy).decode() == expected


@pytest.mark.parametrize("name", ["level.py", "policy.py"])
def test_an_edited_source_is_what_runs(copy: Path, name: str) -> None:
    with (copy / "headworks" / "core" / name).open("a") as file:
        file.write("# edited\n")
    assert said(["-c", FOUND], path=copy).decode() == f"plain Python {copy}/headworks/core/gate.py\n"


def test_a_new_source_is_what_runs(copy: Path) -> None:
    (copy / "headworks" / "core" / "new.py").touch()
    assert said(["-c", FOUND], path=copy).decode() == f"plain Python {copy}/headworks/core/gate.py\n"


def test_what_is_only_half_there_does_not_run(copy: Path) -> None:
    (copy / "headworks" / "_compiled" / f"headworks.core.level{compiled.SUFFIX}").unlink()
    assert said(["-c", FOUND], path=copy).decode() == f"plain Python {copy}/headworks/core/gate.py\n"


def test_python_runs_where_it_is_told_to(copy: Path) -> None:
    assert said(["-c", FOUND], pure="1", path=copy).decode() == f"plain Python {copy}/headworks/core/gate.py\n"


@needs_compiled
def test_compiled_histories_are_those_of_python() -> None:
    """python tests/compiled/histories.py FIRST SEEDS: every event and every effect of so many random worlds, as a hash."""
    program = ["tests/compiled/histories.py", str(FIRST_SEED), str(SEEDS)]
    by_python, by_compiled = said(program, pure="1").split(), said(program).split()
    assert (by_python[:-1], by_compiled[:-1]) == ([b"plain", b"Python"], [b"compiled"])
    assert by_compiled[-1] == by_python[-1], " ".join(program)


@needs_compiled
def test_G3_a_compiled_simulation_writes_the_same_bytes() -> None:
    program = ["-m", "headworks.cli.main", "sim", "scenarios/burst.yaml", "--json"]
    assert said(program) == said(program, pure="1")


@needs_compiled
def test_H3_clients_of_a_compiled_gateway_are_told_the_same() -> None:
    """Whole requests through `serve`: what is answered, streamed, refused and counted."""
    by_compiled, by_python = said(EXCHANGES).splitlines(), said(EXCHANGES, pure="1").splitlines()
    assert (by_compiled[0], by_python[0]) == (b"compiled", b"plain Python")
    assert b"in one piece" in by_compiled
    assert by_compiled[1:] == by_python[1:]


def test_the_version_says_what_runs() -> None:
    assert said(["-m", "headworks.cli.main", "--version"], pure="1") == b"0.1.0 (plain Python)\n"
    expected = "compiled" if compiled.is_current() else "plain Python"
    assert said(["-m", "headworks.cli.main", "--version"]).decode() == f"0.1.0 ({expected})\n"
    assert headworks.IS_COMPILED is (headworks.RUNS_AS == "compiled")


SOURCE = """from __future__ import annotations

from dataclasses import dataclass

WAITS_S = 2.0
TABLE: dict[str, int] = {}


@dataclass(slots=True)
class Pair:
    left: int
    right: str = ''


LENGTH = 2


@dataclass(slots=True)
class Usage:
    tokens: int


class Book:
    pass
"""
PREPARED = """from __future__ import annotations; from typing import Final as _Final, TYPE_CHECKING as _CHECKED
if _CHECKED: from mypy_extensions import mypyc_attr
from dataclasses import dataclass

WAITS_S: _Final = 2.0
TABLE: _Final[dict[str, int]] = {}


@dataclass(slots=True, init=False)
class Pair:
    left: int
    right: str = ''
    def __init__(self, left: int, right: str = '') -> None: self.left = left; self.right = right

LENGTH: _Final = 2

@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Usage:
    tokens: int
    def __init__(self, tokens: int) -> None: self.tokens = tokens
@mypyc_attr(allow_interpreted_subclasses=True)
class Book:
    pass

for _class, _name, _type in ((Pair, 'left', 'int'), (Pair, 'right', 'str'), (Usage, 'tokens', 'int'),): TYPES
"""


def test_a_module_is_prepared_line_by_line() -> None:
    """What is added stands on lines that were there, so that a traceback names the line of the source."""
    native = run_path(str(ROOT / "scripts" / "native_source.py"))["native"]
    types = "getattr(_class, '__annotations__')[_name] = getattr(_class, '__dataclass_fields__')[_name].type = _type"
    assert native(SOURCE) == PREPARED.replace("TYPES", types)
    for path in compiled.sources():
        before, after = path.read_text().splitlines(), native(path.read_text()).splitlines()
        assert len(after) == len(before) + 2, path  # a class may end where the file does
        told = [one for one, other in zip(before, after, strict=False) if one not in (other, "") and not one.startswith("@")]
        assert all("=" in one or one == "from __future__ import annotations" for one in told), path

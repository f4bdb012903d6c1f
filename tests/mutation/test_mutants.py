"""What `scripts/mutation` changes, how the change gets into a running program, and that explained survivors are still there."""

from __future__ import annotations

import ast
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from mutants import Source, with_hits  # noqa: E402
from mutate import outcome_of  # noqa: E402
from transplant import executed, transplant  # noqa: E402

sys.path.remove(str(ROOT / "scripts"))

TEXT = '''"""A module."""
LIMIT = 3
TABLE = {"a": 1, "b": 2}


def first(amount: int, most: int = LIMIT) -> bool:
    """Whether."""
    assert amount > 0
    if amount < most and amount:
        return True
    return False


class Box:
    size = 2

    def __init__(self) -> None:
        self.held = 0

    def take(self, amount: int) -> int:
        self.held += amount
        return min(self.held, self.size)
'''


def test_every_change_has_a_name_that_says_where_and_what() -> None:
    assert [one.name for one in Source("box.py", TEXT).mutants] == [
        "box.py LIMIT: 3 → 4",
        "box.py TABLE: 'a' → 'aX'",
        "box.py TABLE: 'b' → 'bX'",
        "box.py TABLE: 1 → 2",
        "box.py TABLE: 2 → 3",
        "box.py first: amount < most and amount → amount < most or amount",
        "box.py first: amount < most → amount <= most",
        "box.py first: return True → return None",
        "box.py first: True → False",
        "box.py first: False → True",
        "box.py Box: 2 → 3",
        "box.py Box.__init__: self.held = 0 → if 0: self.held = 0",
        "box.py Box.__init__: 0 → 1",
        "box.py Box.take: self.held += amount → if 0: self.held += amount",
        "box.py Box.take: self.held += amount → self.held -= amount",
        "box.py Box.take: return min(self.held, self.size) → return None",
        "box.py Box.take: min → max",
    ]


def test_a_change_is_made_and_undone() -> None:
    source = Source("box.py", TEXT)
    before = ast.unparse(source.tree)
    for mutant in source.mutants:
        mutant.swap()
        assert ast.unparse(source.tree) != before
        mutant.swap()
        assert ast.unparse(source.tree) == before


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("box")
    module.__file__ = "box.py"
    monkeypatch.setitem(sys.modules, "box", module)
    exec(TEXT, module.__dict__)
    return module


def changed(box: types.ModuleType, name: str) -> None:
    source = Source("box.py", TEXT)
    (mutant,) = [one for one in source.mutants if one.name == f"box.py {name}"]
    mutant.swap()
    transplant(box.__dict__, executed(box, source.tree, {}), mutant.targets)


def test_what_runs_gets_the_change_wherever_it_is_held(box: types.ModuleType) -> None:
    first: Any = box.first
    table, made = box.TABLE, box.Box()
    assert (first(3), made.take(5), table) == (False, 2, {"a": 1, "b": 2})
    changed(box, "first: amount < most → amount <= most")
    assert first(3) is True
    changed(box, "Box.take: min → max")
    assert made.take(0) == 5
    changed(box, "TABLE: 2 → 3")
    assert table == {"a": 1, "b": 3}
    changed(box, "LIMIT: 3 → 4")
    assert (box.LIMIT, first(3), first(4)) == (4, True, False), "as a default too"
    changed(box, "Box: 2 → 3")
    assert made.take(0) == 3


def test_marks_say_which_statements_of_functions_were_passed(box: types.ModuleType) -> None:
    source, marks = Source("box.py", TEXT), bytearray(20)
    tree = with_hits(source)
    transplant(box.__dict__, executed(box, tree, {"_hits_": marks}), ())
    box.__dict__["_hits_"] = marks
    box.first(5)
    texts = {
        number: ast.unparse(node) for node in ast.walk(tree) for key, number in source.statements.items() if key == id(node)
    }
    assert [texts[number].partition("\n")[0] for number, hit in enumerate(marks) if hit] == [
        "if amount < most and amount:",
        "return False",
    ]


@pytest.mark.parametrize(
    ("by", "outcome"), [(signal.SIGPROF, "timed out"), (signal.SIGALRM, "not judged"), (signal.SIGKILL, "not judged")]
)
def test_a_change_counts_as_noticed_only_where_its_own_processor_time_ended_it(by: int, outcome: str) -> None:
    """On a busy machine a clock on the wall ends what no test would have noticed."""
    assert outcome_of(by, "", 3) == {"outcome": outcome, "tests": 3, "by": ""}
    assert outcome_of(0, '{"outcome": "survived", "tests": 3, "by": ""}', 3)["outcome"] == "survived"


def test_every_survivor_that_is_explained_is_a_change_that_can_still_be_made() -> None:
    lines = (ROOT / "tests" / "mutation" / "survivors.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    files = {line.partition(" ")[0] for line in named}
    found = {one.name for file in files for one in Source(file, (ROOT / "src/headworks/core" / file).read_text()).mutants}
    assert [line for line in named if line not in found] == []
    assert len(named) == len(set(named))

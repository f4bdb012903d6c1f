"""What may be compiled of the edge: nothing that means another thing then."""

from __future__ import annotations

import ast
from pathlib import Path
from runpy import run_path

from headworks import compiled

OPENS = Path(compiled.PACKAGE).parents[1] / "scripts" / "native_source.py"


def test_H3_no_compiled_module_makes_types_that_bytes_are_decoded_by() -> None:
    """The compiler drops a class's options: a body could name any field then."""
    found = [
        f"{path.name}: {ast.unparse(node).partition(':')[0]}"
        for path in compiled.sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and (node.keywords or "msgspec.Struct" in map(ast.unparse, node.bases))
    ]
    assert found == []


def test_E1_what_is_not_compiled_has_only_bases_that_are_open_to_it() -> None:
    """A class of plain Python cannot be made from a compiled one, unless that says so: a dialect answered 500 for it."""
    sources = set(compiled.sources())
    bases = {name for path in sources for name in _classes(path)}
    opened = set(run_path(str(OPENS))["OPEN"])
    closed = {
        f"{path.name}: {name}({base})"
        for path in (compiled.PACKAGE / "gateway").rglob("*.py")
        if path not in sources
        for name, of in _classes(path).items()
        for base in of & bases - opened
    }
    assert closed == set()


def _classes(path: Path) -> dict[str, set[str]]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return {node.name: {ast.unparse(base) for base in node.bases} for node in nodes}

"""What may be compiled of the edge: nothing that means another thing then."""

from __future__ import annotations

import ast

from headworks import compiled


def test_H3_no_compiled_module_makes_types_that_bytes_are_decoded_by() -> None:
    """The compiler drops a class's options: a body could name any field then."""
    found = [
        f"{path.name}: {ast.unparse(node).partition(':')[0]}"
        for path in compiled.sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and (node.keywords or "msgspec.Struct" in map(ast.unparse, node.bases))
    ]
    assert found == []

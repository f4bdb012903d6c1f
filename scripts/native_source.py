"""The text of a module as it is compiled: the same program, said so that the compiler can do more with it.

Four things are added, each on a line that is there already, so that tracebacks name the lines of the source:

- a dataclass gets its constructor written out: the one that `dataclass` makes while the program runs stays interpreted, and
  would store each field through a descriptor; and, where the module ends, the types of its fields as they are written, of which
  mypyc keeps less;
- one that is equal to itself alone is a plain class then. What is left of `dataclass` would look up what its fields are
  annotated with while its module is loaded, and of two modules that name each other's classes one is not there yet;
- a module's constants, by their capitals, are `Final`, so that their values stand in the code instead of being looked up;
- the classes in `OPEN` may have subclasses that are not compiled;
- those in `VALUES` are not looked at by the collector of cycles: what is made whole, of things that were there before it, and
  is never assigned to afterwards is part of none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

OPEN = (
    *("Book", "Leases", "Testimony", "Lives", "Sessions", "Records", "Gate", "MemoryStore", "Registry"),
    *("EventStream", "Parsed"),
)
"""What tests make subclasses of, with a bug or an ear planted, and the bases of that; and what dialects that stay Python make
theirs of."""
VALUES = (
    *("Answer", "Arrived", "Ask", "Decision", "EngineClosed", "Entry", "Execution", "FirstByte", "Forecast", "LedgerAnswered"),
    *("Outcome", "Record", "Request", "Reserve", "Run", "Start", "Stop", "Stopped", "TurnedAway", "Usage", "WakeAt", "Work"),
)
"""Of each request there are some of these, and some of them stay for a minute. An entry of the book is changed, but refers to
nothing that refers to entries."""
PATCHED = ("OVERDUE_S", "BUFFER_BYTES_MAX", "FORMS_MAX")
"""Constants that a test shortens: they are looked up."""
FIRST = "from __future__ import annotations"
NAMES = "; from typing import Final as _Final, TYPE_CHECKING as _CHECKED"
OPENS = "if _CHECKED: from mypy_extensions import mypyc_attr"
OPENED = "@mypyc_attr(allow_interpreted_subclasses=True)"
ACYCLIC = "@mypyc_attr(acyclic=True)"
DATACLASSES = {
    "@dataclass": "@dataclass(init=False)",
    "@dataclass(slots=True)": "@dataclass(slots=True, init=False)",
    "@dataclass(slots=True, eq=False)": "",
}
"""As they are written here, and as they are compiled. Any other is left as it is."""
TELL = "getattr(_class, '__annotations__')[_name] = getattr(_class, '__dataclass_fields__')[_name].type = _type"
LATER = " = field(init=False)"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def native(source: str) -> str:
    """What the compiler is given for this module."""
    lines = [*source.splitlines(), "", ""]
    tree = ast.parse(source)
    given = [name for node in ast.walk(tree) for name in _constants(node)]
    types: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            types += _construct(lines, node)
            _mark(lines, node)
        for name in _constants(node):
            if given.count(name) == 1 and name not in PATCHED:
                _finish(lines, node)
    lines[lines.index(FIRST)] += NAMES
    if types:
        lines[-1] = f"for _class, _name, _type in ({', '.join(types)},): {TELL}"
    return "\n".join(lines) + "\n"


def _constants(node: ast.AST) -> Iterator[str]:
    """The names in capitals that this statement gives a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (one.id for one in targets if isinstance(one, ast.Name) and CONSTANT.fullmatch(one.id))


def _finish(lines: list[str], node: ast.stmt) -> None:
    """Its value never changes."""
    line = lines[node.lineno - 1]
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        end = node.targets[0].end_col_offset
        lines[node.lineno - 1] = f"{line[:end]}: _Final{line[end:]}"
    elif isinstance(node, ast.AnnAssign) and "Final" not in ast.unparse(node.annotation):
        begin, end = node.annotation.col_offset, node.annotation.end_col_offset
        lines[node.lineno - 1] = f"{line[:begin]}_Final[{line[begin:end]}]{line[end:]}"


def _construct(lines: list[str], node: ast.ClassDef) -> list[str]:
    """The constructor that `dataclass` would make, on the empty line behind the class; gives the types of its fields."""
    at = node.lineno - 2
    if len(node.decorator_list) != 1 or lines[at] not in DATACLASSES or node.bases:
        return []
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not _comes_later(lines, one)]
    if not fields:
        return []
    assert not "".join(lines[node.end_lineno : node.end_lineno + 2]).strip(), f"{node.name}: no two empty lines behind it"
    if not any(one.value is not None and "field(" in ast.unparse(one.value) for one in fields):
        lines[at] = DATACLASSES[lines[at]]
        stored = "; ".join(f"self.{ast.unparse(one.target)} = {ast.unparse(one.target)}" for one in fields)
        lines[node.end_lineno] = f"    def __init__(self, {', '.join(map(ast.unparse, fields))}) -> None: {stored}"
    if not lines[at]:
        return []
    return [f"({node.name}, {ast.unparse(one.target)!r}, {ast.unparse(one.annotation)!r})" for one in fields]


def _comes_later(lines: list[str], field: ast.AnnAssign) -> bool:
    """Somebody sets it before anybody looks: of a plain class no more than its type is said."""
    line = lines[field.lineno - 1]
    lines[field.lineno - 1] = line.removesuffix(LATER)
    return line.endswith(LATER)


def _mark(lines: list[str], node: ast.ClassDef) -> None:
    """What the compiler may take for granted, on the empty line before the class and before what decorates it."""
    if node.name in OPEN or node.name in VALUES:
        at = node.lineno - 2 - len(node.decorator_list)
        assert not lines[at].strip(), f"{node.name}: no empty line before it"
        lines[at] = OPENED if node.name in OPEN else ACYCLIC
        lines[lines.index(FIRST) + 1] = OPENS

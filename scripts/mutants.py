"""Mutants: one small change to a source each, made in its syntax tree. `mutate.py` asks which test notices.

What is changed: comparisons, `and` and `or`, arithmetic, constants, conditions, `min` and `max`, what is returned, and
statements that are left out; in functions, in tables, and in what fields and arguments are by default. What is not:
docstrings, annotations, assertions (they say what is known; `strict=True` is one), the words of what is raised, the text inside
of f-strings, and one falsehood for another.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
CALCULATED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED = (ast.Import, ast.ImportFrom, ast.Assert, ast.Raise, ast.Global, ast.Nonlocal, ast.Pass)
SKIPPED_FIELDS = ("annotation", "returns", "decorator_list", "ctx")
UNTOLD = ("__slots__", "__all__")


@dataclass(slots=True)
class Mutant:
    """One change: what stands at `field` of `node` becomes `new`."""

    name: str
    """Its file, its function, what becomes of what, and which of those that read alike. It stays when lines move."""
    digest: str
    """Of the function, or the statement outside of functions, it is made in: another text is another mutant."""
    line: int
    statement: int
    """The number of the statement in its file."""
    function: str
    """Empty outside of functions."""
    targets: tuple[str, ...]
    """Outside of functions, where no statement is passed by tests: what it gives a value to."""
    node: ast.AST
    field: str
    index: int | None
    new: Any

    def swap(self) -> None:
        """Make the change; or, the second time, undo it."""
        if self.index is None:
            old = getattr(self.node, self.field)
            setattr(self.node, self.field, self.new)
        else:
            many = getattr(self.node, self.field)
            old, many[self.index] = many[self.index], self.new
        self.new = old


class Source:
    """A file, its statements by number, and every mutant of it."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.tree = ast.parse(text)
        self.statements: dict[int, int] = {}
        """By `id` of the node."""
        self.mutants: list[Mutant] = []
        self._alike: dict[str, int] = {}
        self._body(self.tree.body, "", "")

    def _body(self, body: list[ast.stmt], function: str, digest: str) -> None:
        for index, statement in enumerate(body):
            if _is_docstring(statement) or isinstance(statement, SKIPPED) or _is_untold(statement):
                continue
            number = self.statements[id(statement)] = len(self.statements)
            here = digest or _digest(statement)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._fields(statement.args, number, function, here, (statement.name,))
                self._body(statement.body, f"{function}.{statement.name}".lstrip("."), here)
            elif isinstance(statement, ast.ClassDef):
                self._body(statement.body, f"{function}.{statement.name}".lstrip("."), "")
            else:
                targets = () if digest else _targets(statement)
                for change in _of_statement(statement):
                    self._add((body, index), change, number, function, here, targets, statement)
                self._fields(statement, number, function, here, targets)

    def _fields(self, node: ast.AST, number: int, function: str, digest: str, targets: tuple[str, ...]) -> None:
        """Every expression below the node, and every list of statements."""
        for field, value in ast.iter_fields(node):
            if field in SKIPPED_FIELDS or value is None or getattr(node, "arg", None) == "strict":
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._body(value, function, digest)
                continue
            many = value if isinstance(value, list) else [value]
            for index, one in enumerate(many):
                place = (node, field, index if isinstance(value, list) else None)
                if isinstance(one, ast.expr | ast.cmpop | ast.operator | ast.boolop):
                    for new in _instead(node, field, one):
                        self._add_at(place, one, new, number, function, digest, targets)
                if isinstance(one, ast.AST) and not isinstance(one, ast.stmt):
                    self._fields(one, number, function, digest, targets)

    def _add(self, place: Any, new: ast.stmt, number: int, function: str, digest: str, targets: Any, old: ast.stmt) -> None:
        holder = ast.Module(body=place[0], type_ignores=[])
        self._add_at((holder, "body", place[1]), old, new, number, function, digest, targets)

    def _add_at(
        self, place: Any, old: ast.AST, new: ast.AST, number: int, function: str, digest: str, targets: tuple[str, ...]
    ) -> None:
        node, field, index = place
        shown = node if isinstance(old, ast.cmpop | ast.operator | ast.boolop) else old
        before = ast.unparse(shown)
        mutant = Mutant("", digest, getattr(shown, "lineno", 0), number, function, targets, node, field, index, new)
        mutant.swap()
        after = ast.unparse(shown if shown is node else new)
        mutant.swap()
        ast.copy_location(new, shown)
        ast.fix_missing_locations(new)
        if before == after:
            return
        name = f"{self.path} {function or ' '.join(targets)}: {_short(before)} → {_short(after)}"
        count = self._alike[name] = self._alike.get(name, 0) + 1
        mutant.name = name if count == 1 else f"{name} #{count}"
        self.mutants.append(mutant)


def with_hits(source: Source) -> ast.Module:
    """The tree with a mark at each statement of a function, by number, in `_hits_`. It changes the source's own."""
    for node in list(ast.walk(source.tree)):
        if isinstance(node, ast.Module | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, field, list(_marked(body, source.statements)))
    return ast.fix_missing_locations(source.tree)


def _marked(body: list[ast.stmt], numbers: dict[int, int]) -> Iterator[ast.stmt]:
    for statement in body:
        if id(statement) in numbers:
            yield ast.copy_location(ast.parse(f"_hits_[{numbers[id(statement)]}] = 1").body[0], statement)
        yield statement


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    )


def _is_untold(statement: ast.stmt) -> bool:
    guard = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    return guard or any(name in UNTOLD for name in _targets(statement))


def _targets(statement: ast.stmt) -> tuple[str, ...]:
    if isinstance(statement, ast.Assign):
        return tuple(ast.unparse(one) for one in statement.targets)
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return (ast.unparse(statement.target),)
    return ()


def _of_statement(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Left out; or it goes on where it stopped, and stops where it went on; or nothing is returned."""
    if isinstance(statement, ast.Break):
        yield ast.Continue()
    elif isinstance(statement, ast.Continue):
        yield ast.Break()
    elif isinstance(statement, ast.Return):
        if statement.value is not None and not _is_false(statement.value):
            yield ast.Return(ast.Constant(None))
    elif _has_effect(statement):
        yield ast.If(ast.Constant(0), [statement], [])


def _has_effect(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr | ast.Delete):
        return True
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.AnnAssign) and statement.value is not None):
        targets = [statement.target]
    return any(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)


def _instead(parent: ast.AST, field: str, old: ast.AST) -> Iterator[ast.AST]:
    """What may stand there instead."""
    kind: Any = type(old)
    if kind in COMPARED:
        yield COMPARED[kind]()
    elif kind in CALCULATED:
        yield CALCULATED[kind]()
    elif isinstance(old, ast.And | ast.Or):
        yield ast.Or() if isinstance(old, ast.And) else ast.And()
    elif isinstance(old, ast.UnaryOp) and isinstance(old.op, ast.Not | ast.USub):
        yield old.operand
    elif isinstance(old, ast.Constant):
        if not isinstance(parent, ast.JoinedStr):
            yield from _other_constants(old.value)
    elif isinstance(old, ast.Name) and field == "func" and old.id in CALLED:
        yield ast.Name(CALLED[old.id], ast.Load())
    if field in ("test", "ifs") and not isinstance(old, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
        yield ast.UnaryOp(ast.Not(), old)  # type: ignore[arg-type]


def _other_constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str):
        yield ast.Constant(f"{value}X")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _digest(statement: ast.stmt) -> str:
    return hashlib.sha256(ast.unparse(statement).encode()).hexdigest()[:12]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:60]}…{line[-27:]}"

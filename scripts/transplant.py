"""Changed code in a running program: what runs is given the code, the defaults and the values of a module loaded anew."""

from __future__ import annotations

import ast
import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any


def executed(module: types.ModuleType, tree: ast.Module, names: dict[str, Any]) -> dict[str, Any]:
    """What the module would hold, had it been loaded from this tree."""
    space: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__, **names}
    exec(compile(tree, module.__file__ or "", "exec"), space)  # noqa: S102
    return space


def transplant(old: dict[str, Any], new: dict[str, Any], targets: tuple[str, ...]) -> None:
    """Give what runs the code and the defaults of what is new; and the values, where a value was changed."""
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, type) and isinstance(before, type) and value.__module__ == old["__name__"]:
            _patch_class(before, value)
        elif isinstance(value, types.FunctionType):
            _patch(before, value)
    if targets:
        for name, value in new.items():
            if not name.startswith("__") and _is_data(value):
                _replace(old, name, value)


def _functions(value: object) -> Iterator[types.FunctionType]:
    parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    for part in parts:
        while part is not None:
            if isinstance(part, types.FunctionType):
                yield part
            part = getattr(part, "__wrapped__", None)


def _patch(before: object, value: object) -> None:
    for one, other in zip(_functions(before), _functions(value), strict=True):
        if len(one.__code__.co_freevars) == len(other.__code__.co_freevars):
            one.__code__ = other.__code__
        one.__defaults__, one.__kwdefaults__ = other.__defaults__, other.__kwdefaults__


UNCHANGED = ("__module__", "__doc__", "__slots__", "__match_args__")


def _patch_class(before: type, value: type) -> None:
    for name, part in vars(value).items():
        if list(_functions(part)):
            _patch(vars(before).get(name), part)
        elif isinstance(part, int | str | float | tuple) and name not in UNCHANGED and vars(before).get(name) != part:
            setattr(before, name, part)


def _is_data(value: object) -> bool:
    return not isinstance(value, type | types.FunctionType | types.ModuleType)


def _replace(old: dict[str, Any], name: str, value: Any) -> None:
    """A table is changed where it is, since others hold it; a constant wherever it was imported to."""
    before = old.get(name)
    if isinstance(before, dict) and isinstance(value, dict):
        _replace_in(before, value)
    elif dataclasses.is_dataclass(before):
        _replace_fields(before, value)
    elif isinstance(value, int | str | float | tuple | frozenset) and before != value:
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", {})
            if name in space and type(space[name]) is type(before) and space[name] == before:
                space[name] = value


def _replace_in(before: dict[Any, Any], value: dict[Any, Any]) -> None:
    if before.keys() != value.keys():
        before.clear()
        before.update(value)
    for key, one in value.items():
        if isinstance(one, dict):
            _replace_in(before[key], one)
        elif dataclasses.is_dataclass(one) and before[key] is not one:
            _replace_fields(before[key], one)
        else:
            before[key] = one


def _replace_fields(before: Any, value: Any) -> None:
    for field in dataclasses.fields(value):
        if getattr(before, field.name) != getattr(value, field.name):
            setattr(before, field.name, getattr(value, field.name))

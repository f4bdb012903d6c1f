"""The keys as a tree, read from the schema's models: for "did you mean", for the sentence that belongs to a place, and to
hold the reference file to the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from headworks.config.document import Path
from headworks.config.schema import Config
from headworks.config.values import Section

ANY = "*"
"""Stands for any name or list position in a key's pattern."""


@dataclass(slots=True)
class Key:
    """One key: its sentence and what may stand below it."""

    sentence: str = ""
    children: dict[str, Key] = field(default_factory=dict)
    each: Key | None = None
    """What stands under any name, or at any position."""

    def below(self, step: str | int) -> Key | None:
        """The key at one step down."""
        return self.children.get(str(step), self.each)


@cache
def root() -> Key:
    """The tree of the whole file."""
    return _of(Config, "")


def _of(annotation: Any, sentence: str) -> Key:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(arguments[0], sentence)
    if origin in (Union, UnionType):
        keys = [_of(argument, sentence) for argument in arguments]
        return next((key for key in keys if key.children or key.each), keys[0])
    if origin in (dict, list):
        return Key(sentence, {}, _of(arguments[-1], _about(arguments[-1]) or sentence))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        fields = annotation.model_fields
        return Key(sentence, {f.alias or n: _of(f.annotation, f.description or "") for n, f in fields.items()})
    return Key(sentence)


def _about(annotation: Any) -> str:
    """The first line of a section's docstring: what one entry of a mapping or list of them is."""
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return (annotation.__doc__ or "").partition("\n")[0] if is_section else ""


def find(path: Path) -> Key | None:
    """The key at a place of a file, or None where the schema has none."""
    key: Key | None = root()
    for step in path:
        key = key.below(step) if key else None
    return key


def patterns(key: Key | None = None, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of the schema, `*` for names and positions; plain lists count as one key."""
    key = key or root()
    for name, child in key.children.items():
        yield (*above, name)
        yield from patterns(child, (*above, name))
    if key.each and (key.each.children or key.each.each):
        yield from patterns(key.each, (*above, ANY))


def pattern(path: Path) -> tuple[str, ...]:
    """The pattern a place belongs to: names and positions become `*`, known keys stay."""
    steps: list[str] = []
    key: Key | None = root()
    for step in path:
        named = key is not None and step in key.children
        steps.append(str(step) if named else ANY)
        key = key.below(step) if key else None
    return tuple(steps)


def suggestion(path: Path) -> str:
    """What an unknown key was probably meant to be: the nearest key beside it, or the same key where it belongs."""
    near = nearest(path)
    if near is not None:
        return f"did you mean {near}?"
    elsewhere = [".".join(place) for place in patterns() if place[-1] == path[-1]]
    if elsewhere:
        return f"it belongs to {' or '.join(elsewhere[:3])}"
    parent = find(path[:-1])
    return f"known here: {', '.join(parent.children)}" if parent and parent.children else "nothing is known here"


def nearest(path: Path) -> str | None:
    """The known key beside an unknown one that looks most like it."""
    parent = find(path[:-1])
    near = get_close_matches(str(path[-1]), list(parent.children) if parent else [], n=1, cutoff=0.6)
    return near[0] if near else None

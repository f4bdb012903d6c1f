"""What stands in a row of the journal: commands as bytes, and back.

A row holds every list of commands that was run since the row before it, each with the store's time and with how many of its
answers promised capacity. Replaying a row runs the same lists at the same times, and a different count says that this
version of the book decides otherwise than the one that wrote it.

A command is written as its name and its fields in order (MessagePack). A field may be added to a command at its end and with
a default: older rows are then read with that default. Any other change of a command is a new schema (`journal_file.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from headworks.core.commands import Answer, Command


class Run(NamedTuple):
    """One list of commands that was run."""

    at_ms: int
    commands: Sequence[Command]
    promises: int
    """Answers that let work start: they are what a restart must not forget."""


PROMISES = frozenset(
    {("reserve", "granted"), ("reserve", "recorded"), ("grow", "granted"), ("grow", "recorded"), ("reserve", "opened")}
)
"""(verb, outcome) of an answer that lets work start or go on."""

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Command)}
_HINTS = {name: tuple(get_type_hints(kind)[field.name] for field in fields(kind)) for name, kind in _KINDS.items()}
_WRITERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter("__class__.__name__", *(field.name for field in fields(kind))) for kind in _KINDS.values()
}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, list[list[Any]], int]]).decode


def promises(answers: Sequence[Answer]) -> int:
    """How many of them let work start."""
    count = 0
    for answer in answers:
        if (answer.verb, answer.outcome) in PROMISES:
            count += 1
    return count


def encode(runs: Sequence[Run]) -> bytes:
    """One row."""
    return _encode([(at_ms, [_WRITERS[type(one)](one) for one in commands], count) for at_ms, commands, count in runs])


def decode(row: bytes) -> Iterator[Run]:
    """The runs of a row. Raises `ValueError` if it is not one."""
    try:
        for at_ms, commands, count in _decode(row):
            yield Run(at_ms, [_command(*values) for values in commands], count)
    except (msgspec.MsgspecError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _command(name: str, *values: Any) -> Command:
    hints = _HINTS[name]
    if len(values) > len(hints):
        raise ValueError(f"{name} has {len(values)} fields, {len(hints)} are known")
    read = [msgspec.convert(value, hint) for value, hint in zip(values, hints, strict=False)]
    command: Command = _KINDS[name](*read)
    return command

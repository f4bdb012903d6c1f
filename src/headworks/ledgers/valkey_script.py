"""The ledger's Lua script: the files of `lua/`, behind what they share with the book in Python.

Constants, the state table and the commands' fields are written out from `core/`, so there is one place where each is
decided. All is one text, a library of one function that the server loads once: what `EVALSHA` makes anew for every call,
150 functions and some tables, would cost as much as a dozen commands. It is named by its hash, so versions stand side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from typing import Any, NamedTuple, get_args

from headworks.core import book_leases, book_lives, book_proof, book_records, fair, level
from headworks.core.book_counters import UNLIMITED
from headworks.core.book_table import MOVES, STOP_PROVED, STOP_VERBS, Move
from headworks.core.commands import Command
from headworks.core.types import READ_UNITS

SCHEMA = 1
"""Of the keys and values in the store (docs/ledger-on-valkey.md). A version refuses every other one."""
PARTS = ("shelves", "records", "counters", "level", "turns", "lives", "testimony", "leases", "apply")
FORGOTTEN_PAGE = 128
FORGOTTEN_PAGES_MAX = 32
"""Pages of ended executions that one list of commands forgets at most."""

LIMITS: dict[str, int] = {
    "SCHEMA": SCHEMA,
    "FORGOTTEN_PAGE": FORGOTTEN_PAGE,
    "FORGOTTEN_PAGES_MAX": FORGOTTEN_PAGES_MAX,
    "UNLIMITED": UNLIMITED,
    **{
        name: getattr(module, name)
        for module, names in (
            (level, ("FLOWS_MAX",)),
            (fair, ("MARK_MS", "WOKEN_MS", "MARK_KEPT_MS", "PASSES_MAX", "MARKS_MAX", "LOOKED_PAST_MAX")),
            (book_proof, ("READER_MS", "FOREIGN_SAMPLES", "UNDECIDED_SAMPLES", "DOUBT_MS", "YIELD_MS", "YIELD_EVERY_MS")),
            (book_proof, ("SAMPLES_MAX", "ENDED_MAX", "INCARNATIONS_MAX")),
            (book_records, ("MINTED_MS", "MINTED_STEP_MS", "TOMBSTONE_LEASES", "WAKES_MAX", "NEVER_MS")),
            (book_leases, ("ADOPT_MAX", "BOOTS_MAX")),
            (book_lives, ("STEPS_MAX",)),
        )
        for name in names
    },
}

OWNERS = ("owner", "reserved_by")
KEYS = ("key",)
NAMES = """
local function name_of(pair)
  return pair and pair[1] .. "\\0" .. pair[2] or nil
end
local function told(record)
  record.owner, record.reserved_by, record.key = name_of(record.owner), name_of(record.reserved_by), name_of(record.key)
  return record
end
"""


class Script(NamedTuple):
    """A library of one function, which has the same name."""

    name: str
    text: str


def script(clock: str | None = None) -> Script:
    """The whole ledger. `clock`: Lua that defines `clock_ms` in another way, for tests."""
    body = "\n".join([prelude(), clock or _part("clock"), *map(_part, PARTS)])
    return named(body)


def named(body: str) -> Script:
    """What its text is says what it is called."""
    name = f"headworks_{hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()[:16]}"
    return Script(name, f'#!lua name={name}\nlocal NAME = "{name}"\n{body}')


def look_script() -> str:
    """Reads what is held (`valkey_view.py`)."""
    return _part("look")


def _part(name: str) -> str:
    return files("headworks.ledgers").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def prelude() -> str:
    """What is decided in `core/`, as Lua."""
    return "\n".join(
        [
            "local ROOT, ARGUMENTS, call, pack, unpacked",
            f"local LIMIT = {_table(LIMITS)}",
            f"local READ_UNITS = {_table(dict.fromkeys(sorted(READ_UNITS), True))}",
            f"local STOP_VERBS, STOP_PROVED = {_table(STOP_VERBS)}, {_value(STOP_PROVED)}",
            *_moves(),
            NAMES,
            f"local READ = {{ {', '.join(_reader(kind) for kind in get_args(Command))} }}",
        ]
    )


def _moves() -> Iterator[str]:
    """Cells that are one in Python are one in Lua: the table is made anew for every list of commands."""
    made: dict[int, str] = {}
    cells = list({id(move): move for row in MOVES.values() for move in row.values()}.values())
    for number, move in enumerate(cells, 1):
        made[id(move)] = f"MOVE[{number}]"
    yield f"local MOVE = {{ {', '.join(map(_move, cells))} }}"
    rows = [
        f"[{_value(state)}] = {{ {', '.join(f'[{_value(verb)}] = {made[id(move)]}' for verb, move in row.items())} }}"
        for state, row in MOVES.items()
    ]
    yield f"local MOVES = {{ {', '.join(rows)} }}"


def _move(move: Move) -> str:
    parts: dict[str, Any] = {"act": move.act, "outcome": move.outcome}
    if move.state:
        parts["state"] = move.state
    if move.ends:
        parts["ends"] = move.ends
    return _table(parts)


def _reader(kind: type[Any]) -> str:
    """A command comes as its name and its fields in order."""
    parts = [f"[{_value(field.name)}] = {_field(field.name, number)}" for number, field in enumerate(fields(kind), 2)]
    return f"{kind.__name__} = function(c) return {{ {', '.join(parts)} }} end"


def _field(name: str, number: int) -> str:
    if name in (*OWNERS, *KEYS):
        return f"name_of(c[{number}])"
    return f"told(c[{number}])" if name == "record" else f"c[{number}]"


def _table(values: dict[str, Any]) -> str:
    return f"{{ {', '.join(f'[{_value(name)}] = {_value(value)}' for name, value in values.items())} }}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return _table(value)
    return str(value) if isinstance(value, int) else '"' + value + '"'

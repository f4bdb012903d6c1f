"""The ledger's Lua script: the files of `lua/`, behind what they share with the book in Python.

Constants, the state table and the commands' fields are written out from `core/`, so there is one place where each is decided;
only commands that come in another form are read by hand (`lua/words.lua`). All is one text, a library of one function that the
server loads once: what `EVALSHA` makes anew for every call, 150 functions and some tables, would cost as much as a dozen
commands. It is named by its hash, so versions stand side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from typing import Any, NamedTuple

from headworks.core import book_leases, book_lives, book_proof, book_records, book_sessions, fair, level
from headworks.core.book_counters import STANDING, UNLIMITED
from headworks.core.book_table import MOVES, STOP_PROVED, STOP_VERBS, Move
from headworks.core.types import READ_UNITS
from headworks.ledgers.valkey_wire import CODES, OPENING, PACKED

SCHEMA = 2
"""Of the keys and values in the store (docs/ledger-on-valkey.md). A version refuses every other one."""
PARTS = (
    *("words", "shelves", "records", "remembering", "counters", "level", "marks", "turns", "sessions", "lives", "testimony"),
    *("leases", "apply"),
)
FORGOTTEN_PAGE = 32
FORGOTTEN_PAGES_MAX = 32
"""Pages of ended executions that one list of commands forgets at most."""
QUEUED_MAX = 128
"""Values in one element of a queue."""
ENDS_PAGE = 64
KEPT_MAX = 200_000
"""Names of counters, flows and shapes that the script keeps in memory between calls; beyond, it begins anew."""
DOMAINS_MAX = 16
"""Domains on one server of which it does."""

LIMITS: dict[str, int] = {
    "SCHEMA": SCHEMA,
    "FORGOTTEN_PAGE": FORGOTTEN_PAGE,
    "FORGOTTEN_PAGES_MAX": FORGOTTEN_PAGES_MAX,
    "QUEUED_MAX": QUEUED_MAX,
    "ENDS_PAGE": ENDS_PAGE,
    "KEPT_MAX": KEPT_MAX,
    "DOMAINS_MAX": DOMAINS_MAX,
    "UNLIMITED": UNLIMITED,
    "STANDING": STANDING,
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
            (book_sessions, ("SESSIONS_MAX",)),
        )
        for name in names
    },
}


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
            f"local CODE = {_table({kind.__name__: code for kind, code in CODES.items()} | {'Opening': OPENING})}",
            f"local READ = {{ {', '.join(_reader(kind) for kind in CODES if kind not in PACKED)} }}",
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
    """A command comes as its code and its fields in order."""
    names = [field.name for field in fields(kind)]
    parts = ", ".join(f"{name} = {name}" for name in names)
    return f"[{CODES[kind]}] = function(_, {', '.join(names)}) return {{ {parts} }} end"


def _table(values: dict[str, Any]) -> str:
    return f"{{ {', '.join(f'[{_value(name)}] = {_value(value)}' for name, value in values.items())} }}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return _table(value)
    return str(value) if isinstance(value, int) else '"' + value + '"'

"""Commands and answers between Python and the script, as MessagePack.

A command is its name and its fields in order. An answer is `[outcome, state]` where that is all there is to say, five
values for one that repeats its record, or `[outcome, state, {…}]`. What follows from the command is not sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, get_args

import msgspec

from headworks.core.commands import Answer, Command, Grow, Heartbeat, Reassert, Shortfall
from headworks.core.types import Charge, Owner, RequestKey, Reservation, Usage

_KINDS: tuple[type[Any], ...] = get_args(Command)
_WRITERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter("__class__.__name__", *(field.name for field in fields(kind))) for kind in _KINDS
}
_VERBS = {kind: "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_") for kind in _KINDS}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

PLAIN, RECORD = 2, 5
"""Lengths of the two short kinds of answers."""
OWNERS_MAX = 10_000
"""Names of boots that are kept taken apart."""


@dataclass(slots=True)
class Asked:
    """Who asks, and of which life of the store. Without an epoch: open it, or join what is open."""

    epoch: str | None
    run_id: str
    lease_ms: int
    remember_ms: int
    records_max: int


@dataclass(slots=True)
class Reply:
    """What the script says: `ok` with answers, `open` or `changed` with the epoch that is open."""

    outcome: str
    epoch: str = ""
    now_ms: int = 0
    first_sequence: int = 0
    answers: list[Any] | None = None


def encode(commands: Sequence[Command]) -> bytes:
    """A list of commands."""
    return _encode([_WRITERS[type(one)](one) for one in commands])


def encode_asked(asked: Asked) -> bytes:
    """The script's second argument."""
    return _encode(asked)


def read_reply(blob: bytes) -> Reply:
    """The script packs values one after another."""
    values = _all(blob)
    if values[0] == "ok":
        return Reply("ok", "", values[1], values[2], values[3])
    return Reply(values[0], values[1], values[2] if len(values) > 2 else 0)


def _all(blob: bytes) -> list[Any]:
    """One array around the values makes them one value."""
    count = 4 if blob.startswith(b"\xa2ok") else 3 if blob.startswith(b"\xa4open") else 2
    found: list[Any] = _decode(bytes([0x90 | count]) + blob)
    return found


class Answers:
    """Makes answers of what the script says; remembers owners, since nearly every answer names the same few."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}

    def read(self, reply: Reply, commands: Sequence[Command]) -> list[Answer]:
        """The answers of these commands, in order."""
        told = reply.answers or []
        pairs = zip(commands, told, strict=True)
        return [self._answer(command, one, number) for number, (command, one) in enumerate(pairs, reply.first_sequence)]

    def _answer(self, command: Command, told: Sequence[Any], sequence: int) -> Answer:
        kind = type(command)
        about = command.record if kind is Reassert else command  # type: ignore[union-attr]
        execution: str = getattr(about, "execution", "")
        if len(told) == PLAIN:
            owner = about.owner  # type: ignore[union-attr]
            return Answer(_VERBS[kind], execution, told[0], 0, told[1], (), None, "", owner, sequence)
        if len(told) == RECORD:
            outcome, state, evidence, usage, name = told
            owner = self.owner(name)
            return Answer(_VERBS[kind], execution, outcome, 0, state, (), _usage(usage), evidence, owner, sequence)
        step = command.step if kind is Grow else command.beat if kind is Heartbeat else 0  # type: ignore[union-attr]
        more = self._more(told[2]) if told[2] else {}
        more.setdefault("execution", execution)
        return Answer(_VERBS[kind], outcome=told[0], state=told[1], step=step, sequence=sequence, **more)

    def _more(self, told: dict[str, Any]) -> dict[str, Any]:
        return {name: _READ[name](self, value) if name in _READ else value for name, value in told.items()}

    def owner(self, name: str) -> Owner:
        """A boot, by the name it has in the store."""
        owner = self._owners.get(name)
        if owner is None:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            owner = self._owners[name] = Owner(*name.split("\0"))
        return owner

    def record(self, told: Sequence[Any]) -> Reservation:
        """One execution, as the script writes it."""
        execution, key, fingerprint, state, was, seen, owner, reserved_by, replica, incarnation, charges, usage, *rest = told
        evidence, reserved_ms, started_ms, ended_ms = rest
        return Reservation(
            execution=execution,
            key=RequestKey(*key.split("\0", 1)) if key else None,
            fingerprint=fingerprint,
            state=state,
            was=was,
            seen=seen,
            owner=self.owner(owner),
            reserved_by=self.owner(reserved_by),
            replica=replica,
            incarnation=incarnation,
            charges=tuple(map(Charge._make, charges)),
            usage=_usage(usage),
            evidence=evidence,
            reserved_ms=reserved_ms,
            started_ms=started_ms,
            ended_ms=ended_ms,
        )


_READ: dict[str, Callable[[Answers, Any], Any]] = {
    "owner": Answers.owner,
    "owners": lambda answers, told: tuple(map(answers.owner, told)),
    "records": lambda answers, told: tuple(map(answers.record, told)),
    "usage": lambda answers, told: _usage(told),
    "shortfalls": lambda answers, told: tuple(Shortfall(*one) for one in told),
    "profiles": lambda answers, told: tuple((replica, tuple(profile)) for replica, profile in told),
    "alarms": lambda answers, told: tuple((name, replica) for name, replica in told),
}
"""What a full answer may say besides → how it is read."""


def _usage(told: Any) -> Usage | None:
    return msgspec.convert(told, Usage) if told else None

"""Commands and answers between Python and the script, as MessagePack.

A command is a text of its own: a code and then its fields, one value after another, so that Lua takes it apart without making a
table of it. What many commands have in common is one word in them, which both sides remember: an owner, and a *shape*: where
a request runs, whose turn it takes, and what is charged for it, all but the amounts.

An answer is `[outcome, state]` where that is all there is to say, four values where the record says what the command has said,
five for one that repeats its record, or `[outcome, state, {…}]`. What follows from the command is not sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import msgspec

from headworks.core.commands import (
    Answer,
    Command,
    Grow,
    Heartbeat,
    Reassert,
    Reserve,
    Shortfall,
    Stop,
    TellSession,
    Waits,
)
from headworks.core.types import Charge, Owner, RequestKey, Reservation, SessionRecord, Usage

CODES: dict[type[Any], int] = {kind: code for code, kind in enumerate(get_args(Command), 1)}
"""What a command begins with."""
OPENING = len(CODES) + 1
"""The same of a `Reserve` that opens a session."""
PACKED = (Reserve, Stop, Grow, Waits, Reassert, TellSession)
"""Commands that are not sent field by field."""
_RESERVE, _STOP = CODES[Reserve], CODES[Stop]
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in CODES if kind not in PACKED}
_VERBS = {kind: "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_") for kind in CODES}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Usage).decode

PLAIN, ECHO, RECORD = 2, 4, 5
"""Lengths of the three short kinds of answers."""
OWNERS_MAX = 10_000
"""Names of boots that are kept taken apart."""
SHAPES_MAX = 10_000
"""Shapes whose words are kept."""
PART = "\1"
EVEN = (1.0, 1.0)
SHORT_MAX = 15
"""Values of an array whose head is one byte."""


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
    answers: Sequence[Any] = ()


class Words:
    """Makes the words of commands; remembers how owners and shapes are written, since nearly every command has the same few."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Any, ...], str] = {}
        self._names: dict[Owner, str] = {}
        self._writers: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
            Reserve: self._reserve,
            Stop: self._stop,
            Grow: self._grow,
            Waits: self._waits,
            Reassert: self._reassert,
            TellSession: self._tell_session,
        }

    def of(self, commands: Sequence[Command]) -> list[bytes]:
        """The words of each."""
        writers, plain = self._writers, self._plain
        return [_packed(writers[type(one)](one) if type(one) in writers else plain(one)) for one in commands]

    def _plain(self, command: Command) -> tuple[Any, ...]:
        kind = type(command)
        values = [getattr(command, name) for name in _FIELDS[kind]]
        return (CODES[kind], *(_joined(value) if isinstance(value, Owner | RequestKey) else value for value in values))

    def _reserve(self, one: Reserve) -> tuple[Any, ...]:
        if one.session:
            return self._reserve_for_session(one)
        key = None if one.key is None else _joined(one.key)
        shape, amounts = self.shape(one.pool, one.replica, one.flow, one.weights, one.charges)
        what = (_RESERVE, one.execution, key, one.fingerprint, self._name(one.owner), shape)
        return (*what, one.cost_tokens, one.waiting_tokens, one.more, one.slots_tokens, *amounts)

    def _reserve_for_session(self, one: Reserve) -> tuple[Any, ...]:
        """A call of one takes no turn, so it is nobody's: its flow was charged for the whole session."""
        what: tuple[Any, ...]
        if one.opens is None:
            key = None if one.key is None else _joined(one.key)
            shape, amounts = self.shape(one.pool, one.replica, None, EVEN, one.charges)
            what = (_RESERVE, one.execution, key, one.fingerprint, self._name(one.owner), shape)
        else:
            shape, amounts = self.shape(one.pool, one.replica, one.flow, one.weights, one.charges)
            what = (OPENING, one.execution, self._name(one.owner), one.session, *one.opens, shape)
        return (*what, one.cost_tokens, one.waiting_tokens, one.more, one.slots_tokens, *amounts)

    def _tell_session(self, command: TellSession) -> tuple[Any, ...]:
        one = command.told
        charges = [(scope, "tokens", 0) for scope in one.scopes]
        shape, _ = self.shape(one.pool, "", one.flow, one.weights, charges)
        return (CODES[TellSession], one.scope, shape, one.tokens, one.spent_tokens, one.idle_ms, one.left_ms)

    def _stop(self, one: Stop) -> tuple[Any, ...]:
        usage = one.usage
        owner = self._name(one.owner)
        if usage is None:
            written, used_tokens = None, 0
        else:
            written, used_tokens = _written(usage), usage.prompt_tokens + usage.output_tokens
        if not one.commits:
            return (_STOP, one.execution, owner, one.evidence, one.end, written, used_tokens)
        commits = [value for scope, unit, amount in one.commits for value in (f"{unit}\0{scope}", amount)]
        return (_STOP, one.execution, owner, one.evidence, one.end, written, used_tokens, commits)

    def _grow(self, one: Grow) -> tuple[Any, ...]:
        shape, amounts = self.shape("", "", None, EVEN, one.charges)
        return (CODES[Grow], one.execution, self._name(one.owner), one.step, shape, *amounts)

    def _waits(self, one: Waits) -> tuple[Any, ...]:
        shape, amounts = self.shape(one.pool, "", one.flow, EVEN, one.charges)
        return (CODES[Waits], self._name(one.owner), shape, one.waiting_tokens, *amounts)

    def _reassert(self, command: Reassert) -> tuple[Any, ...]:
        one = command.record
        key = None if one.key is None else _joined(one.key)
        pool = one.replica.rsplit("/", 1)[0]
        shape, amounts = self.shape(pool, one.replica, None, EVEN, one.charges)
        usage = None if one.usage is None else _written(one.usage)
        owners = (self._name(one.owner), self._name(one.reserved_by))
        times = (one.reserved_ms, one.started_ms, one.ended_ms)
        what = (one.execution, key, one.fingerprint, one.state, one.was, one.seen)
        return (CODES[Reassert], *what, *owners, shape, usage, one.evidence, *times, *amounts)

    def shape(
        self,
        pool: str,
        replica: str,
        flow: tuple[str, str] | None,
        weights: tuple[float, float],
        charges: Sequence[tuple[str, str, int]],
    ) -> tuple[str, Sequence[int]]:
        """What such requests have in common, as one word; and the amounts."""
        scopes, units, amounts = zip(*charges, strict=True) if charges else ((), (), ())
        known = (pool, replica, flow, weights, scopes, units)
        word = self._shapes.get(known)
        if word is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            names = (f"{unit}\0{scope}" for scope, unit in zip(scopes, units, strict=True))
            word = PART.join((pool, replica, *(flow or ("", "")), *map(repr, weights), *names))
            self._shapes[known] = word
        return word, amounts

    def _name(self, owner: Owner) -> str:
        name = self._names.get(owner)
        if name is None:
            if len(self._names) >= OWNERS_MAX:
                self._names.clear()
            name = self._names[owner] = _joined(owner)
        return name


def _joined(pair: Owner | RequestKey) -> str:
    return f"{pair[0]}\0{pair[1]}"


def _written(usage: Usage) -> str:
    return _write(usage).decode()


def _packed(values: tuple[Any, ...]) -> bytes:
    """One after another, without the head of the array that they would be."""
    return _encode(values)[1 if len(values) <= SHORT_MAX else 3 :]


def encode_asked(asked: Asked) -> bytes:
    """The script's first argument."""
    return _encode(asked)


def read_reply(blob: bytes, count: int = 0) -> Reply:
    """The script packs values one after another; `count`: how many answers it gives if it ran what was asked."""
    if blob.startswith(b"\xa2ok"):
        _, now_ms, first_sequence, *answers = _values(blob, 3 + count)
        return Reply("ok", "", now_ms, first_sequence, answers)
    if blob.startswith(b"\xa4open"):
        return Reply(*_values(blob, 3))
    return Reply(*_values(blob, 2))


def _values(blob: bytes, count: int) -> list[Any]:
    """One array around the values makes them one value."""
    found: list[Any] = _decode(b"\xdd" + count.to_bytes(4, "big") + blob)
    return found


class Answers:
    """Makes answers of what the script says; remembers owners, since nearly every answer names the same few."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}

    def read(self, reply: Reply, commands: Sequence[Command]) -> list[Answer]:
        """The answers of these commands, in order."""
        pairs = zip(commands, reply.answers, strict=True)
        return [self._answer(command, one, number) for number, (command, one) in enumerate(pairs, reply.first_sequence)]

    def _answer(self, command: Command, told: Sequence[Any], sequence: int) -> Answer:
        kind = type(command)
        about = command.record if kind is Reassert else command  # type: ignore[union-attr]
        execution: str = getattr(about, "execution", "")
        if len(told) == PLAIN:
            owner = about.owner  # type: ignore[union-attr]
            return Answer(_VERBS[kind], execution, told[0], 0, told[1], (), None, "", owner, sequence)
        if len(told) == ECHO:
            owner = about.owner  # type: ignore[union-attr]
            usage, evidence = about.usage, about.evidence  # type: ignore[union-attr]
            return Answer(_VERBS[kind], execution, told[0], 0, told[1], (), usage, evidence, owner, sequence)
        if len(told) == RECORD:
            outcome, state, evidence, usage, name = told
            owner = self.owner(name)
            return Answer(_VERBS[kind], execution, outcome, 0, state, (), read_usage(usage), evidence, owner, sequence)
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
        execution, key, fingerprint, state, was, seen, owner, reserved_by, replica, incarnation, names, amounts, *rest = told
        usage, evidence, reserved_ms, started_ms, ended_ms = rest
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
            charges=charges_of(names, amounts),
            usage=read_usage(usage),
            evidence=evidence,
            reserved_ms=reserved_ms,
            started_ms=started_ms,
            ended_ms=ended_ms,
        )


_READ: dict[str, Callable[[Answers, Any], Any]] = {
    "owner": Answers.owner,
    "owners": lambda answers, told: tuple(map(answers.owner, told)),
    "records": lambda answers, told: tuple(map(answers.record, told)),
    "usage": lambda answers, told: read_usage(told),
    "shortfalls": lambda answers, told: tuple(Shortfall(*one) for one in told),
    "profiles": lambda answers, told: tuple((replica, tuple(profile)) for replica, profile in told),
    "goes_first": lambda answers, told: tuple(told),
    "sessions": lambda answers, told: tuple(msgspec.convert(one, SessionRecord) for one in told),
    "alarms": lambda answers, told: tuple((name, replica) for name, replica in told),
}
"""What a full answer may say besides → how it is read."""


def charges_of(names: Sequence[str], amounts: Sequence[int]) -> tuple[Charge, ...]:
    """A counter is called by its unit and scope."""
    parts = (name.partition("\0") for name in names)
    return tuple(Charge(scope, unit, amount) for (unit, _, scope), amount in zip(parts, amounts, strict=True))


def read_usage(told: str | None) -> Usage | None:
    return _read(told) if told else None

"""What reads files, and words for the store's script, and what holds of it whatever stands there (A9, A11)."""

from __future__ import annotations

import atexit
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import hiredis
import msgspec

from headworks.config.build import policy, settings
from headworks.config.document import LINE_END
from headworks.config.load import load_bytes
from headworks.core.book import Book
from headworks.core.commands import Cancel, Claim, Command, Grow, Heartbeat, SetLimits, Start, Stop, Waits
from headworks.core.types import Charge, RequestKey
from headworks.gateway.statement import statement
from headworks.gateway.statement_shown import period_named
from headworks.gateway.usage_files import kept, scanned
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.journal import recovered, snapshot_of
from headworks.ledgers.journal_file import TABLES, Contents, connect
from headworks.ledgers.journal_rows import Run, decode, encode, promises
from headworks.ledgers.valkey_wire import CODES, Words
from headworks.logs import reading
from headworks.testing import servers
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve, used
from tests.fuzz.choices import Choices

ENVIRONMENT = {name: f"{name.lower()}-0123456789abcdef0123" for name in ("HEADWORKS_ADMIN_KEY", "ACME_KEY", "ENGINE_KEY")}
CHARGED = {"tenant:acme": 1_000, "pool:pool": 2_000}


def config(data: bytes) -> None:
    """A file is a configuration from which everything can be made, or problems with a text and a line, and tells no secret."""
    loaded = load_bytes(data, "h.yaml", ENVIRONMENT)
    assert (loaded.config is None) == bool(loaded.problems)
    last = len(LINE_END.findall(data.decode("utf-8", "replace"))) + 2
    for problem in (*loaded.problems, *loaded.warnings):
        assert problem.text and 1 <= problem.line <= last, problem
        assert str(problem).replace("\t", " ").isprintable(), repr(str(problem))
        assert not any(secret in str(problem) for secret in ENVIRONMENT.values()), problem
    if loaded.config is not None:
        policy(loaded.config, number=1)
        settings(loaded.config, ENVIRONMENT)


# The journal.


@cache
def history() -> list[list[Command]]:
    """What a gateway asks in a few seconds."""
    key = RequestKey("acme", "k")
    limits = tuple(Charge(scope, "tokens", amount) for scope, amount in CHARGED.items())
    return [
        [SetLimits("policy-1", 1, limits), Heartbeat(FIRST), Heartbeat(SECOND)],
        [Claim("a", key, "f", FIRST), reserve("a", 100, key=key, fingerprint="f"), reserve("b", 200, owner=SECOND)],
        [Start("a", FIRST), Start("b", SECOND), Waits(("bulk", "acme"), "pool", FIRST, [("pool:pool", "tokens", 5)], 5)],
        [Grow("a", FIRST, 1, (Charge("pool:pool", "tokens", 16),)), Cancel("b", SECOND)],
        [Stop("a", FIRST, "E1", "completed", used(90)), reserve("c", 2_500)],
    ]


@cache
def written() -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """The same as a file has it: a snapshot of the beginning, what had ended, and rows."""
    book = Book(LEASE_MS, REMEMBER_MS)
    rows = []
    first: dict[str, Any] = {}
    for number, commands in enumerate(history()):
        answers = book.apply(commands, 1_000 * number)
        if number:
            rows.append(encode([Run(1_000 * number, commands, promises(answers))]))
        else:
            first = snapshot_of(book)
    return msgspec.msgpack.encode({**first, "ended_upto": 0}), msgspec.msgpack.encode([]), tuple(rows)


def changed(choices: Choices, good: bytes) -> bytes:
    """One or two places of it are otherwise; or all of it is something else."""
    if choices.number(4) == 3:
        return choices.rest()
    made = bytearray(good)
    for _ in range(1 + choices.number(2)):
        place = (choices.number(256) << 8 | choices.number(256)) % (len(made) + 1)
        made[place : place + choices.number(4)] = choices.some()
    return bytes(made)


@contextmanager
def ledger(snapshot: bytes, ended: bytes, rows: tuple[bytes, ...]) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        connection.execute("INSERT INTO snapshot (number, book) VALUES (1, ?)", (snapshot,))
        connection.execute("INSERT INTO ended (forget_ms, records) VALUES (9, ?)", (ended,))
        connection.executemany("INSERT INTO journal (runs) VALUES (?)", [(row,) for row in rows])
        yield connection


def journal(data: bytes) -> None:
    """A ledger whose rows are damaged is a book that is right, or is refused with a sentence: nothing else is raised."""
    choices = Choices(data)
    snapshot, ended, rows = written()
    which = choices.number(2 + len(rows))
    if which == 0:
        snapshot = changed(choices, snapshot)
    elif which == 1:
        ended = changed(choices, ended)
    else:
        rows = (*rows[: which - 2], changed(choices, rows[which - 2]), *rows[which - 1 :])
    with ledger(snapshot, ended, rows) as connection:
        try:
            book = recovered(Contents(connection, Path("l.db")), LEASE_MS, REMEMBER_MS, 60_000)
        except LedgerError as error:
            assert "l.db" in str(error)
            return
    assert book.check() == []
    again = Book(LEASE_MS, REMEMBER_MS)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(book.snapshot())))
    assert again.check() == [] and again.records() == book.records()


def row(data: bytes) -> None:
    """Any bytes as a row: commands that can be written again as the same, or no row."""
    try:
        runs = list(decode(data))
    except ValueError:
        return
    assert [one.commands for one in decode(encode(runs))] == [one.commands for one in runs]


@cache
def good_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l.db"
        snapshot, ended, rows = written()
        with closing(connect(path)) as connection:
            connection.execute("INSERT INTO snapshot (number, book) VALUES (1, ?)", (snapshot,))
            connection.execute("INSERT INTO ended (forget_ms, records) VALUES (9, ?)", (ended,))
            connection.executemany("INSERT INTO journal (runs) VALUES (?)", [(row,) for row in rows])
            connection.execute("PRAGMA journal_mode=DELETE")
        return path.read_bytes()


def file(data: bytes) -> None:
    """The same of the database's own pages."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        path = Path(folder) / "l.db"
        path.write_bytes(changed(Choices(data), good_file()))
        try:
            with closing(connect(path)) as connection:
                book = recovered(Contents(connection, path), LEASE_MS, REMEMBER_MS, 60_000)
        except LedgerError as error:
            assert "l.db" in str(error)
            return
        assert book.check() == []


def memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# Lines.


def lines(data: bytes) -> None:
    """Any bytes as a decision log, a usage journal or its totals: what is no line is passed over, what is one counted."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        path = Path(folder) / "usage-20261201T000000-1-000.jsonl"
        path.write_bytes(data)
        for line in reading.lines(path):
            assert isinstance(line, dict), line
        billed = scanned(path)
        assert all(isinstance(tokens, int) for hour in billed.values() for tokens, _ in hour.values())
        made = statement(Path(folder), period_named("2026-12"), 1_796_083_200.0 + 86_400)
        # A damaged line may name another pool than its engine's, which is told; but nothing gets lost.
        costs = sum(pool.total_nanomoney - pool.idle_nanomoney for pool in made.pools.values())
        assert made.total.cost_nanomoney == costs, made
        assert kept(path) is None or isinstance(kept(path), dict)


# The store's script.


class Wire:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self._reader = hiredis.Reader()
        self._port = port
        self.connect()

    def connect(self) -> None:
        self._socket = servers.socket.create_connection(("127.0.0.1", self._port), timeout=10)

    def ask(self, *words: bytes | str | int) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(1 << 20)
            assert received, "the server is gone"
            self._reader.feed(received)
        return reply


@cache
def store() -> Any:
    """A server for as long as this process lives."""
    from tests.ledgers.valkey_plain import PlainLedger

    stack = servers.single()
    server = stack.__enter__()
    atexit.register(stack.__exit__, None, None, None)
    wire = Wire(server.port)
    wire.ask("CONFIG", "SET", "busy-reply-threshold", "2000")
    return PlainLedger(wire, "fuzz"), wire  # type: ignore[arg-type]


@cache
def good_words() -> list[bytes]:
    return [word for commands in history() for word in Words().of(commands)]


def lua(data: bytes) -> None:
    """Any bytes as words for the script: an answer or an error, in time. A command that is none changes nothing."""
    plain, wire = store()
    choices = Choices(data)
    what = choices.number(3)
    good = choices.of(good_words())
    wire.ask("FLUSHDB")
    plain._asked.epoch = None
    plain._asked.epoch = msgspec.msgpack.decode(b"\x93" + plain._call([], 0))[1]
    asked = msgspec.msgpack.encode(plain._asked)
    if what == 0:
        words = [bytes([len(CODES) + 2 + choices.number(100)]) + choices.rest()]
    elif what == 1:
        words = [good[: 1 + choices.number(len(good) - 1)] if len(good) > 1 else good]
    else:
        words = [changed(choices, good)]
    before = everything(wire, plain.root)
    told = wire.ask("FCALL", plain.script.name, 1, plain.root, asked, *good_words()[:3], *words)
    if what == 0:
        assert isinstance(told, hiredis.ReplyError), told
        assert everything(wire, plain.root) == before, "a command that is none has changed something"
    assert wire.ask("PING") == b"PONG"
    wire.ask("FLUSHDB")
    plain._asked.epoch = None
    plain._asked.epoch = msgspec.msgpack.decode(b"\x93" + plain._call([], 0))[1]
    outcomes = [answer.outcome for commands in history() for answer in plain.apply(commands, 1_000)]
    assert outcomes == expected(), outcomes


def everything(wire: Wire, root: str) -> dict[bytes, Any]:
    return {name: wire.ask("DUMP", name) for name in wire.ask("KEYS", f"{root}*") if not name.endswith(b":clock")}


@cache
def expected() -> list[str]:
    """What the book says to the same commands."""
    book = Book(LEASE_MS, REMEMBER_MS)
    return [answer.outcome for commands in history() for answer in book.apply(commands, 1_000)]

"""What the logs of the other gateways of a ledger have of a request (F2, docs/decisions/0063).

Each gateway writes a log of its own. Whoever is asked about a request asks all others, over the ledger's store, and each of
them looks into its own log. What is sent is a name and whose it may be, and what comes back are records. The question says
where its asker's log is, so that workers of one machine that share a directory do not all read the same files.

Nobody waits for long: who does not answer in time, keeps no log or has too much to do is named as missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headworks.core.types import Owner
from headworks.gateway.decisions import DecisionLog
from headworks.ledgers.errors import LedgerError

if TYPE_CHECKING:
    from headworks.ledgers.valkey import ValkeyStore

ANSWER_S_MAX = 1.0
"""The others are waited for so long at each step."""
ANSWER_BYTES_MAX = 262_144
"""Of one answer; of what does not fit the newest is sent."""
WAITING_MAX = 32
"""Questions of others that wait for each other here."""
SILENT = f"did not answer within {ANSWER_S_MAX:g} s"
NO_LOG, BUSY, CUT = "keeps no decision log", "has too many look-ups under way", "has more records than fit into an answer"
_MACHINE = Path("/proc/sys/kernel/random/boot_id")

Line = dict[str, Any]
Said = TypeVar("Said")
Names = list[tuple[str, str | None]]
"""What is looked for, and whose: of any tenant where there is none."""


class Question(msgspec.Struct, frozen=True):
    """What one gateway asks all others."""

    id: str
    asker: Owner
    names: Names
    place: str
    """Where the asker's own log is; empty: nowhere."""


class Told(msgspec.Struct, frozen=True):
    """What one of them answers."""

    id: str
    owner: Owner
    lines: list[Line]
    lacks: str = ""
    """Why there may be more; empty: these are all."""


class Asking:
    """One look-up at all gateways, in several steps. Whoever was missing in one of them is missing."""

    def __init__(self, others: OtherLogs) -> None:
        self._others = others
        self._seen: set[Owner] = set()
        self._lacking: dict[Owner, str] = {}
        self._failure = ""

    async def lines(self, names: Names) -> list[Line]:
        """What the others have."""
        if not names:
            return []
        try:
            living, answers = await self._others.ask(names)
        except LedgerError as error:
            self._failure = str(error)
            return []
        self._seen.update(living, (one.owner for one in answers))
        self._lacking |= dict.fromkeys(self._seen - {one.owner for one in answers}, SILENT)
        self._lacking |= {one.owner: one.lacks for one in answers if one.lacks}
        return [line for one in answers for line in one.lines]

    def shown(self, *, names: bool) -> dict[str, Any]:
        """How many others there are and how many told all they have; with their names, why the rest is missing."""
        shown: dict[str, Any] = {"gateways": len(self._seen), "told": len(self._seen) - len(self._lacking)}
        if names:
            shown["missing"] = {f"{one.gateway} ({one.boot})": why for one, why in self._lacking.items()}
            if self._failure:
                shown["missing"]["all others"] = self._failure
        return shown


class OtherLogs:
    """One gateway's side of both: it asks, and it answers."""

    def __init__(self, store: ValkeyStore, owner: Owner, log: DecisionLog | None) -> None:
        from headworks.ledgers.valkey_post import ValkeyPost

        self._post = ValkeyPost(store, owner, self._asked, self._told)
        self._owner = owner
        self._log = log
        self._place = "" if log is None else _place(log.directory)
        self._open: dict[str, Callable[[Told], None]] = {}
        """Questions of ours that are under way."""
        self._answering: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "other-logs")

    # asking

    async def ask(self, names: Names) -> tuple[list[Owner], list[Told]]:
        """Who lives beside us, and what came in time. Raises `LedgerError`."""
        question = Question(secrets.token_hex(8), self._owner, names, self._place)
        answers: list[Told] = []
        heard, came = 0, asyncio.Event()

        def take(answer: Told) -> None:
            answers.append(answer)
            came.set()

        self._open[question.id] = take
        try:
            living, heard = await self._post.ask(msgspec.json.encode(question))
            async with asyncio.timeout(ANSWER_S_MAX):
                while len(answers) < heard:
                    came.clear()
                    await came.wait()
        except TimeoutError:
            pass
        finally:
            del self._open[question.id]
        return living, answers

    def _told(self, said: bytes) -> None:
        answer = _read(said, Told)
        if answer is not None and answer.id in self._open:
            self._open[answer.id](answer)

    # answering

    def _asked(self, said: bytes) -> None:
        question = _read(said, Question)
        if question is not None and question.asker != self._owner:
            task = asyncio.get_running_loop().create_task(self._answer(question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, question: Question) -> None:
        if len(self._answering) > WAITING_MAX:
            answer = Told(question.id, self._owner, [], BUSY)
        else:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, self._found, question)
        with contextlib.suppress(LedgerError):  # whoever asked sees that it is missing
            await self._post.tell(question.asker, msgspec.json.encode(answer))

    def _found(self, question: Question) -> Told:
        if self._log is None:
            return Told(question.id, self._owner, [], NO_LOG)
        if question.place and question.place == self._place:
            self._log.flush()
            return Told(question.id, self._owner, [])
        found = [line for name, tenant in question.names for line in self._log.find(name, tenant)]
        fitting = _fitting(found)
        return Told(question.id, self._owner, fitting, "" if len(fitting) == len(found) else CUT)

    def close(self) -> None:
        """What is asked from now on is not answered."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _read(said: bytes, kind: type[Said]) -> Said | None:
    """What another version says in other words is not for us."""
    try:
        return msgspec.json.decode(said, type=kind)
    except msgspec.DecodeError:
        return None


def _fitting(lines: list[Line]) -> list[Line]:
    """As many of the last ones as fit into an answer."""
    size_bytes, first = 0, len(lines)
    while first and size_bytes + (more := len(msgspec.json.encode(lines[first - 1]))) <= ANSWER_BYTES_MAX:
        size_bytes += more
        first -= 1
    return lines[first:]


def _place(directory: Path) -> str:
    """The same for two processes only where both see one directory of one machine."""
    try:
        machine, seen = _MACHINE.read_text(encoding="ascii").strip(), directory.stat()
    except OSError:
        return ""
    return f"{machine} {seen.st_dev} {seen.st_ino}"

"""The shared ledger: the whole book inside a Valkey or Redis server, for any number of gateways (A3, A7, A11).

    apply(commands) → [what waits] → one FCALL → answers, in order

The script (`lua/`, `valkey_script.py`) is the book once more: one list of commands in, their answers out, atomically, at the
store's own time. At most `CALLS_MAX` calls are under way; each takes half of what is asked, so the busier a gateway is the less
an operation costs. A call that is not answered in time, or is lost with its connection, is not answered here either: the gate
asks again, and every command may be asked twice.

*Epoch.* Which life of the store is meant stands in every call. A server that was restarted, promoted or emptied has
another one; then nothing is run, the gate is told (`changed`), and every gateway tells it again what it has
(`core/recovery.py`).

*Nobody there.* Commands that find no connection are dropped. The gate is told (`lost`), refuses what is new, lets run what
runs, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from headworks.core.commands import Answer, Command
from headworks.core.types import Owner
from headworks.ledgers import valkey_view
from headworks.ledgers.base import Told
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.valkey_line import Line, StoreError, StoreLost, open_line
from headworks.ledgers.valkey_place import Place
from headworks.ledgers.valkey_script import SCHEMA, Script, script
from headworks.ledgers.valkey_view import View
from headworks.ledgers.valkey_wire import Answers, Asked, Reply, Words, encode_asked, read_reply

log = logging.getLogger("headworks.ledgers")

CALLS_MAX = 2
COMMANDS_MAX = 64
"""A call takes lists until it has so many commands. A longer list is one call."""
HALF_MIN = 8
"""Fewer are not parted: what a call costs by itself is worth about four commands."""
WAITING_MAX = 20_000
"""Commands that may wait; a list beyond is dropped, and asked again by its gate."""
RECORDS_MAX = 1_000_000
CALL_S = 2.0
"""An answer that takes longer is not waited for: its connection is taken for dead."""
CONNECT_S = 3.0
AGAIN_S = (0.02, 0.05, 0.1, 0.2)
VERSION_MIN = 7
CHANNELS = ("turn", "wake")
"""What a gateway is told: whose turn it is; and the pool alone, which is all that scripts of before 2026-12 say."""
ELSEWHERE = (
    *("READONLY", "MOVED", "ASK", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOAUTH", "NOPERM", "OOM", "MISCONF"),
    *(
        "NOREPLICAS",
        "ERR Function not found",
        "ERR Attempted to access a non local key",
        "ERR Script attempted to access a non",
    ),
)
"""Errors after which the server, or the way to it, is looked for anew."""

Answered = Callable[[list[Answer]], None]


class ValkeyStore:
    """A `LedgerStore` in a server that others share."""

    guarantee = (
        "Exact across all gateways of its domain while the store runs; a store that restarts or fails over may have forgotten "
        "seconds: then nothing new is admitted until every gateway has told it again what runs."
    )

    def __init__(
        self,
        place: Place,
        domain: str,
        *,
        lease_ms: int,
        remember_ms: int,
        clock_s: Callable[[], float],
        owner: Owner | None = None,
        told: Told | None = None,
        ledger: Script | None = None,
        records_max: int = RECORDS_MAX,
    ) -> None:
        self.root = f"headworks:{{{domain}}}"
        self.failure = ""
        """Why the store cannot be worked with now."""
        self._place = place
        self._clock_s = clock_s
        self._told = told or Told()
        self._listening: dict[str, Callable[[bytes], None]] = {}
        """By channel, who hears what is said there."""
        if owner is not None:
            for kind in CHANNELS:
                self.listen(f"{kind}:{named(owner)}", self._turned)
        self._script = ledger or script()
        self._asked = Asked(None, "", lease_ms, remember_ms, records_max)
        self._asked_blob = b""
        self._words = Words()
        self._answers = Answers()
        self._line: Line | None = None
        self._ears: Line | None = None
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False
        self._waiting: deque[tuple[Sequence[Command], Answered]] = deque()
        self._waiting_commands = 0
        self._sent_s: deque[float] = deque()
        """When each call that is under way was sent."""
        self._sent_commands = 0
        """In them."""
        self._watch: asyncio.TimerHandle | None = None
        self._epoch = ""
        self._clock_from: tuple[int, float] = (0, clock_s())

    # asking

    def apply(self, commands: Sequence[Command], answered: Answered) -> None:
        """Send with the next call; never answered if the connection is lost before its answer has come."""
        if self._is_lost or self._waiting_commands + len(commands) > WAITING_MAX:
            return
        self._waiting.append((commands, answered))
        self._waiting_commands += len(commands)
        self._send()

    def _send(self, calls_max: int = CALLS_MAX) -> None:
        line = self._line
        while line is not None and self._waiting and len(self._sent_s) < calls_max:
            lists = self._next_lists()
            commands = lists[0][0] if len(lists) == 1 else [one for commands, _ in lists for one in commands]
            self._waiting_commands -= len(commands)
            self._sent_commands += len(commands)
            self._sent_s.append(self._clock_s())
            if self._watch is None:
                self._look_later(CALL_S)
            call = (b"FCALL", self._script.name, 1, self.root, self._asked_blob)
            line.ask((*call, *self._words.of(commands)), partial(self._answered, lists, commands))

    def _next_lists(self) -> list[tuple[Sequence[Command], Answered]]:
        """Half of all that is asked or under way, so that the server runs one call while the other's answers are taken in."""
        half = (self._waiting_commands + self._sent_commands + 1) // 2
        most = min(COMMANDS_MAX, max(HALF_MIN, half))
        lists = [self._waiting.popleft()]
        count = len(lists[0][0])
        while self._waiting and count + len(self._waiting[0][0]) <= most:
            lists.append(self._waiting.popleft())
            count += len(lists[-1][0])
        return lists

    def _answered(self, lists: Sequence[tuple[Sequence[Command], Answered]], commands: Sequence[Command], told: object) -> None:
        self._sent_commands -= len(commands)
        try:  # its place is taken until all have their answers, so that what these lead to goes together
            self._take(lists, commands, told)
        finally:
            self._sent_s.popleft()
        self._send()

    def _take(self, lists: Sequence[tuple[Sequence[Command], Answered]], commands: Sequence[Command], told: object) -> None:
        if not isinstance(told, bytes):
            self._failed(str(told))
            return
        reply = read_reply(told, len(commands))
        if reply.outcome == "ok":
            self._give(lists, self._answers.read(reply, commands), reply)
        elif self._line is not None:  # of another epoch: nothing was run
            self._line.close()

    def _give(self, lists: Sequence[tuple[Sequence[Command], Answered]], answers: list[Answer], reply: Reply) -> None:
        self._clock_from = (reply.now_ms, self._clock_s())
        if len(lists) == 1:
            lists[0][1](answers)
            return
        first = 0
        for commands, answered in lists:
            answered(answers[first : first + len(commands)])
            first += len(commands)

    def _failed(self, error: str) -> None:
        """The server answered with an error: nothing of this call is known to have been run."""
        if self.failure != error:
            self.failure = error
            log.error("the ledger's store answered: %s", error)
        if error.startswith(ELSEWHERE) and self._line is not None:
            self._line.close()

    def _look_later(self, after_s: float) -> None:
        assert self._loop is not None, "it has not been started"
        self._watch = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        """Whether the oldest call has been under way for too long."""
        self._watch = None
        if not self._sent_s or self._line is None:
            return
        left_s = self._sent_s[0] + CALL_S - self._clock_s()
        if left_s > 0:
            self._look_later(left_s)
        else:
            self.failure = f"no answer for {CALL_S:g} s"
            self._line.close()

    # the connection

    def start(self) -> None:
        """Begin to look for the store. Until it is found, or cannot be, what is asked waits."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._keep())

    async def _keep(self) -> None:
        """Have a connection, as long as this store lives."""
        tries = 0
        while True:
            try:
                await asyncio.wait_for(self._open(), CONNECT_S)
            except (StoreLost, StoreError, LedgerError, TimeoutError) as error:
                self._lose(str(error) or f"{self._place} did not answer for {CONNECT_S:g} s")
            except Exception as error:  # a server that says what none should: the next look may find another
                log.exception("the ledger at %s cannot be opened", self._place)
                self._lose(repr(error))
            else:
                tries = 0
                await self._over.wait()
                self._lose(self.failure or "the connection ended")
            await asyncio.sleep(AGAIN_S[min(tries, len(AGAIN_S) - 1)])
            tries += 1

    def _lose(self, why: str) -> None:
        """What was asked and not answered will not be: it may have been run, and is asked again."""
        self._drop_lines()
        self._sent_s.clear()
        self._sent_commands = 0
        self._waiting.clear()
        self._waiting_commands = 0
        if not self._is_lost:
            self._is_lost = True
            log.warning("the ledger at %s is lost: %s", self._place, why)
            self._told.lost()
        self.failure = why

    def _drop_lines(self) -> None:
        lines, self._line, self._ears = (self._line, self._ears), None, None
        for line in lines:
            if line is not None:
                line.close()

    async def _open(self) -> None:
        """Find the server, learn which process it is, and open the ledger there or join it."""
        self._over = over = asyncio.Event()
        door = await self._place.find(self.root)
        line = await open_line(door, over.set)
        try:
            run_id = await _run_id(line)
            await _load(line, self._script)
            self._asked.epoch, self._asked.run_id = None, run_id
            words = ("FCALL", self._script.name, 1, self.root, encode_asked(self._asked))
            told = await line.asked(*words)
            if self._listening:
                self._ears = ears = await open_line(door, over.set, self._heard)
                for channel in self._listening:
                    await ears.asked("SSUBSCRIBE", channel)
        except StoreError as error:
            line.close()
            raise _explained(error) from error
        except BaseException:
            line.close()
            raise
        assert isinstance(told, bytes)
        self._opened(line, read_reply(told))

    def _opened(self, line: Line, reply: Reply) -> None:
        self._line = line
        self._asked.epoch = reply.epoch
        self._asked_blob = encode_asked(self._asked)
        self._clock_from = (reply.now_ms, self._clock_s())
        was_lost, self._is_lost, self.failure = self._is_lost, False, ""
        if was_lost:
            log.warning("the ledger at %s answers", self._place)
        if reply.epoch != self._epoch:
            self._epoch = reply.epoch
            self._told.changed(reply.epoch)
        self._send()

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> None:
        """Have somebody hear what is said on a channel of this ledger, from the next connection on."""
        self._listening[f"{self.root}:{channel}"] = heard

    def _heard(self, message: object) -> None:
        assert isinstance(message, list)
        self._listening[message[1].decode()](message[2])

    def _turned(self, said: bytes) -> None:
        pool, *flow = said.decode().split("\0")
        self._told.woken(pool, (flow[0], flow[1]) if flow else None)

    # looking at it

    async def look(self, *, ended: bool = False) -> View:
        """What stands in it now. Raises `LedgerError` if it cannot be asked."""
        told = await self.ask("EVAL", valkey_view.SCRIPT, 1, self.root, "all" if ended else "")
        assert isinstance(told, list)
        return View(told)

    async def ask(self, *words: bytes | str | int) -> object:
        """One command on the ledger's own connection. Raises `LedgerError` if nobody answers."""
        line = self._line
        if line is None:
            raise LedgerError(f"The ledger at {self._place} does not answer: {self.failure}")
        try:
            return await line.asked(*words)
        except (StoreError, StoreLost) as error:
            raise LedgerError(f"The ledger at {self._place} does not answer: {error}") from error

    def now_ms(self) -> int:
        """The store's clock, as far as its last answer and ours tell."""
        at_ms, at_s = self._clock_from
        return at_ms + int((self._clock_s() - at_s) * 1000)

    def close(self) -> None:
        """What waits is sent, and nothing is waited for: the last word of a gateway is that it leaves."""
        self._send(calls_max=WAITING_MAX)
        if self._task is not None:
            self._task.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if self._line is not None:
            self._line.finish()
        self._line, self._is_lost = None, True
        self._drop_lines()


def named(owner: Owner) -> str:
    """As the store has it."""
    return f"{owner.gateway}\0{owner.boot}"


async def _load(line: Line, ledger: Script) -> None:
    """Whoever comes first does."""
    try:
        await line.asked("FUNCTION", "LOAD", ledger.text)
    except StoreError as error:
        if "already exists" not in str(error):
            raise


async def _run_id(line: Line) -> str:
    """Of a primary, and of a version that has what is needed."""
    told = await line.asked("INFO")
    assert isinstance(told, bytes)
    facts = dict(row.partition(":")[::2] for row in told.decode(errors="replace").splitlines() if ":" in row)
    if facts.get("role") != "master":
        raise StoreLost("the server is a replica")
    if int(facts["redis_version"].partition(".")[0]) < VERSION_MIN:
        raise LedgerError(f"The ledger needs Valkey, or Redis {VERSION_MIN} or newer; this is {facts['redis_version']}")
    return f"{facts['run_id']}.{facts['master_replid']}"  # a promotion gives the second one anew


def _explained(error: StoreError) -> Exception:
    text = str(error)
    if "HEADWORKS_SCHEMA" in text:
        found = text.rpartition(" ")[2]
        return LedgerError(f"The ledger was written under schema {found}; this version of headworks knows {SCHEMA}")
    return StoreLost(text)

"""`serve --workers N`: one process that starts N gateways on the same port, keeps them there, and ends with them.

The kernel spreads connections over the processes (`SO_REUSEPORT`). Each is a gateway of its own, with its own name, boot and
admin port; the ledger makes one budget of them, so it has to be one that several gateways share. A worker that dies is
started again, with growing pauses; one that could not be started the first time ends them all, and so does a signal, which
each of them obeys as a single gateway does. Where this process is killed they drain, each by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence

import typer

COULD_NOT_START = 2
AGAIN_S = (1.0, 2.0, 5.0, 15.0)
"""Pauses before a worker that died is started again; the last one holds."""
SETTLED_S = 60.0
"""Whoever served for so long begins with the first pause again."""


def command(arguments: Sequence[str], number: int) -> tuple[str, ...]:
    """What worker `number` is started by: this very command, and which one it is."""
    return (sys.executable, "-P", "-m", "headworks.cli.main", *arguments, "--worker", str(number))


async def supervise(arguments: Sequence[str], workers: int) -> int:
    """Run until a signal ends them. The exit status: the worst of theirs."""
    return await _Supervisor(arguments).run(workers)


class _Supervisor:
    """The processes, and whether they are to go on."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._over = asyncio.Event()

    async def run(self, workers: int) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP)
        return max(await asyncio.gather(*(self._keep(number) for number in range(1, workers + 1))))

    async def _keep(self, number: int) -> int:
        """One worker, started as often as it dies. Its last exit status."""
        loop, deaths, is_first = asyncio.get_running_loop(), 0, True
        while True:
            began_s = loop.time()
            status = await self._live(number)
            if self._over.is_set():
                return max(0, status)
            has_settled = loop.time() - began_s >= SETTLED_S
            if status == COULD_NOT_START and is_first and not has_settled:
                self._end()
                return status
            is_first = False
            deaths = 0 if has_settled else deaths
            pause_s = AGAIN_S[min(deaths, len(AGAIN_S) - 1)]
            deaths += 1
            typer.echo(f"headworks: worker {number} ended with {status} and is started again in {pause_s:g} s", err=True)
            if await self._ends_within(pause_s):
                return 0

    async def _live(self, number: int) -> int:
        """One process, from its start to its end."""
        try:
            process = await asyncio.create_subprocess_exec(*command(self._arguments, number))
        except OSError as error:  # no memory, or too many processes: the others serve on
            typer.echo(f"headworks: worker {number} cannot be started: {error.strerror}", err=True)
            return COULD_NOT_START
        self._processes[number] = process
        if self._over.is_set():  # the signal came while it was being started
            self._tell(signal.SIGTERM)
        status = await process.wait()
        del self._processes[number]
        return status

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def _end(self) -> None:
        self._over.set()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):  # it has ended in this very turn
                process.send_signal(number)

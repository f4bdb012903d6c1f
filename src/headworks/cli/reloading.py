"""A gateway's file, read again: because of SIGHUP, because it changed (`serve --watch`), or because an operator asked.

Whoever asks, it is the same: the file is read whole, beside the loop, and is taken whole or not at all; one after the other.
What is in force after a bad file is what was in force before it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headworks.cli.configured import Asked, configured
from headworks.config.problem import ConfigError, Problem
from headworks.engines.base import EngineError

if TYPE_CHECKING:
    from headworks.gateway.app import App

log = logging.getLogger("headworks.gateway")

WATCH_EVERY_S = 1.0
"""A file that looks the same twice, so far apart, has been written to its end."""
Seen = tuple[int, int, int]


class Reloading:
    """The file of one gateway, and how it becomes what is in force."""

    def __init__(self, file: Path, asked: Asked) -> None:
        self.file = file
        self._asked = asked
        self._one_at_a_time = asyncio.Lock()
        self._taken = self.seen()
        """How the file looked when it was last read."""

    def seen(self) -> Seen | None:
        """How it looks from outside; None while it is not there. A link that is turned is another file behind it."""
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    async def reload(self, app: App, reason: str) -> str:
        """The version that is now in force. Raises `ConfigError` where nothing was changed."""
        async with self._one_at_a_time:
            self._taken = self.seen()
            try:
                await self._take(app)
            except ConfigError as error:
                for problem in error.problems:
                    print(f"not reloaded: {problem}", file=sys.stderr)
                raise
        print(f"reloaded, policy {app.policy.version} ({reason})")
        sys.stdout.flush()
        return app.policy.version

    async def _take(self, app: App) -> None:
        """A thousand tenants take half a second to check: in a process of their own, which is waited for beside the loop."""
        found = await asyncio.to_thread(configured, self._asked, max(app.policy.number + 1, policy_number()))
        fixed = app.fixed(found.settings)
        if fixed:
            raise self._no_use(f"{', '.join(fixed)} can only change with a restart")
        try:
            await app.reload(found.policy, found.settings)
        except EngineError as error:
            raise self._no_use(str(error)) from None

    def _no_use(self, why: str) -> ConfigError:
        return ConfigError((Problem(str(self.file), 0, "", why),))

    async def when_told(self, asked: asyncio.Event, app: App) -> None:
        """By SIGHUP: what comes while one is under way is the next one."""
        while True:
            await asked.wait()
            asked.clear()
            await self._quietly(app, "SIGHUP")

    async def when_changed(self, app: App, every_s: float = WATCH_EVERY_S) -> None:
        """Once it looks otherwise than when it was last read, and the same in two looks."""
        before = self.seen()
        while True:
            await asyncio.sleep(every_s)
            now = self.seen()
            if now is not None and now == before and now != self._taken:
                await self._quietly(app, "the file changed")
            before = now

    async def _quietly(self, app: App, reason: str) -> None:
        """Nobody waits for the answer: it has been printed."""
        try:
            await self.reload(app, reason)
        except ConfigError:
            pass
        except Exception:
            log.exception("the reload failed")


def policy_number() -> int:
    """Of a policy that is read now: a shared ledger outlives its gateways, so theirs go on counting from the last one's."""
    return time.time_ns() // 1_000_000

"""Keeps an issuer's keys as it has them: read at the start, now and then, and soon where a token names one that is not there.

A flood of such tokens has them read once in `LEAST_S`, whatever it names. Keys that cannot be read stay as they are for
`jwt.keep_s`; then no token is good until they can be. Keys that an issuer takes back are gone with the next reading, and whom
they had let in is looked at anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headworks.config.settings import IssuerKeys, Settings, TokenRules
from headworks.core.policy import Policy
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look
from headworks.engines.pool import Pool
from headworks.gateway.keys import Keys

if TYPE_CHECKING:
    from headworks.gateway.issuer import Issuer

log = logging.getLogger("headworks.gateway")

LEAST_S = 10.0
"""Between two readings, however often they are asked for; and after one that failed."""
READ_S_MAX = 5.0
BYTES_MAX = 1_000_000
START_S_MAX = 2.0
"""How long a start waits for the first reading."""
SOON_S = 1.0
"""In which a reading is likely to have ended."""
MISSING = "jwt: it needs PyJWT and cryptography; install headworks[jwt], or leave it out"


class IssuerError(Exception):
    """What should be the issuer's keys cannot be used, or nothing can verify by them. The text says why."""


class IssuerWatch:
    """Owns the issuer, and tells `keys` of it."""

    def __init__(
        self,
        given: IssuerKeys,
        rules: TokenRules,
        policy: Policy,
        keys: Keys,
        wall_s: Callable[[], float],
        clock_s: Callable[[], float],
    ) -> None:
        try:
            from headworks.gateway.issuer import Issuer
        except ImportError as error:
            raise IssuerError(f"{MISSING} ({error})") from None
        self._given, self._rules, self._keys, self._clock_s = given, rules, keys, clock_s
        self.issuer: Issuer = Issuer(rules, policy.tenants, wall_s, self._want)
        keys.tokens = self.issuer
        self._pool = None if given.url is None else Pool(Endpoint(given.url, ca=given.ca), clock_s)
        self._path = "" if urlsplit(given.url or "").path.strip("/") else "/"
        self._wanted = asyncio.Event()
        self._read_s = float("-inf")
        """When the last reading began."""
        self._failed = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read, and go on reading. Without keys a gateway starts as well: they may come."""
        await self.read(START_S_MAX)
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._pool is not None:
            await self._pool.close()

    def change(self, rules: TokenRules, policy: Policy) -> None:
        """After a reload. The keys stay, and are where they were. The caller makes all keys known anew."""
        self._rules = rules
        self.issuer.change(rules, policy.tenants)

    def _want(self) -> float:
        self._wanted.set()
        return max(0.0, self._read_s + LEAST_S - self._clock_s()) + SOON_S

    async def _go_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAST_S if self._failed else self._rules.refresh_s):
                    await self._wanted.wait()
            await asyncio.sleep(self._read_s + LEAST_S - self._clock_s())
            await self.read(READ_S_MAX)

    async def read(self, within_s: float) -> None:
        """Once. What fails is said once, and changes nothing."""
        self._wanted.clear()
        self._read_s = self._clock_s()
        try:
            if self.issuer.read(await self._text(within_s), self._read_s):
                self._keys.forget()
                log.warning("the keys of %s have been read, and were not known before", self._rules.issuer)
            self._failed = ""
        except (IssuerError, EngineError, OSError) as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error("the keys of %s stay as they are: %s", self._rules.issuer, error)

    async def _text(self, within_s: float) -> bytes:
        if self._pool is None:
            return await asyncio.to_thread(_file, str(self._given.file))
        seen = await look(self._pool, self._path, within_s)
        if seen.status != 200 or len(seen.payload) > BYTES_MAX:
            raise IssuerError(
                f"GET {self._given.url}: status {seen.status}, {len(seen.payload)} bytes; expected 200 and a JWKS"
            )
        return seen.payload


def _file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(BYTES_MAX)


def opened(
    settings: Settings, policy: Policy, keys: Keys, wall_s: Callable[[], float], clock_s: Callable[[], float]
) -> IssuerWatch | None:
    """By the settings; None: nobody comes with a token. Raises `IssuerError`, or `EngineError`: no authorities."""
    given, rules = settings.issuer_keys, settings.token_rules
    return None if given is None or rules is None else IssuerWatch(given, rules, policy, keys, wall_s, clock_s)

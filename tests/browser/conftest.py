"""The page in a real browser: one Chromium and one gateway before a fake engine for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
from app_scene import PATIENT, Scene, chat, fake_engine, first_event, scene

pytest.importorskip("playwright", reason="the page is tested with playwright: scripts/setup installs it")
from playwright.async_api import Browser, Error, Page, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = "no Chromium is here: `.venv/bin/playwright install chromium`, one on the PATH, or HEADWORKS_BROWSER=PATH"
TENANTS = {
    "acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 5_000},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "active_requests_max": 1, "class": "batch"},
}
CLASSES = {**PATIENT, "batch": {"queue": {"wait_s_max": 100, "requests_max": 1}}}
EXPECTED = "Failed to load resource"
"""Chromium's own word for an answer that is no 2xx, such as 401 before there is a key."""


@dataclass
class Stage:
    """What the tests play on. `run` does its steps on the one loop that everything lives on."""

    runner: asyncio.Runner
    browser: Browser
    scene: Scene
    faults: list[str] = field(default_factory=list)
    """What the browser complained about: policies that were broken, scripts that failed."""

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        self.runner.run(asyncio.wait_for(steps, 60))
        assert self.faults == []

    @property
    def url(self) -> str:
        host, port = self.scene.app.admin_address[:2]
        return f"http://{host}:{port}/dashboard"

    @contextlib.asynccontextmanager
    async def page(self, *, wait: str = "live", url: str = "", width: int = 1280, **context: Any) -> AsyncIterator[Page]:
        """A new visitor with nothing kept from others. `wait`: for this state of the connection; empty: for nothing."""
        visitor = await self.browser.new_context(viewport={"width": width, "height": 900}, **context)
        page = await visitor.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self._hear(said.type, said.text))
        try:
            await page.goto(url or self.url)
            if wait:
                await page.locator(f"body[data-state={wait}]").wait_for()
            if wait == "live":
                await page.locator("body[data-version]").wait_for()
            yield page
        finally:
            await visitor.close()

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith(EXPECTED):
            self.faults.append(text)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = contextlib.AsyncExitStack()
        try:
            yield runner.run(_built(stack, runner))
        finally:
            runner.run(stack.aclose())


async def _built(stack: contextlib.AsyncExitStack, runner: asyncio.Runner) -> Stage:
    playwright = await stack.enter_async_context(async_playwright())
    found = _found(playwright.chromium.executable_path)
    if found is None:
        pytest.skip(NO_BROWSER)
    try:
        browser = await playwright.chromium.launch(executable_path=found)
    except Error as error:
        pytest.skip(f"{found} could not be started: {error.message.splitlines()[0]}")
    stack.push_async_callback(browser.close)
    slow = fake_engine(speed=0.03)  # so that what runs when the page is opened runs as long as it is looked at
    built = await stack.enter_async_context(scene(slow, tenants=TENANTS, classes=CLASSES))
    for client in await busy(built):
        stack.callback(client.close)
    return Stage(runner, browser, built)


def _found(own: str) -> str | None:
    """The one that is named, or playwright's own, or the system's."""
    named = os.environ.get("HEADWORKS_BROWSER")
    return named or next((path for name in (own, *NAMES) if (path := shutil.which(name))), None)


async def busy(s: Scene) -> list[Any]:
    """One answer of each tenant runs, one request of batchco waits for that, and another one was refused for it."""
    clients = []
    for key in ("ACME_KEY", "BATCHCO_KEY"):
        client = await s.connect()
        client.send(chat(key=key, stream=True, tokens=1_900))
        assert (await first_event(client)).status == 200
        clients.append(client)
    waiting = await s.connect()
    waiting.send(chat("X-Request-Id: has-to-wait", key="BATCHCO_KEY", tokens=8))
    await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
    assert (await s.ask(chat("X-Request-Id: turned-away", key="BATCHCO_KEY"))).status == 429
    return [*clients, waiting]

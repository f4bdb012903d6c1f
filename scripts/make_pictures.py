"""Pictures of the dashboard and of `headworks top` under a burst, as docs/dashboard.md shows them.

Nothing is staged but the traffic: two fake engines, a gateway from a file, and four tenants that ask for three minutes, one of
which sends more than the engines can carry for the last of them. The pictures are what a browser and a terminal show then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from PIL import Image
from playwright.async_api import Browser, async_playwright

from headworks.cli.admin_port import AdminPort
from headworks.tools.top_figures import Figures, figures, state_of
from headworks.tools.top_screen import LATELY, Top

DOCS = Path(__file__).resolve().parent.parent / "docs"
ENGINE = (
    *("--preset", "a100_8b", "--speed", "0.5", "--stream-interval", "8"),
    *("--max-num-seqs", "16", "--max-model-len", "4096", "--num-gpu-blocks-override", "1100"),
)
BURST_RATIO = 0.62
"""The flood begins after this part of the time, and lasts to the end."""
OPEN_MAX = 400
PICTURES = ("dashboard.png", "dashboard-dark.png", "dashboard-story.png", "dashboard-narrow.png")
COLOURS = 96
"""Of a picture: a page of few tones needs no more, and takes a third."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One tenant's clients: how often they ask, and for what."""

    tenant: str
    service_class: str
    per_s: float
    burst_per_s: float
    prompt_words: tuple[int, int]
    answer_tokens: tuple[int, int]
    patience_s: float


CALLERS = (
    Caller("shop", "interactive", 3.0, 9.0, (30, 200), (24, 90), 12.0),
    Caller("support", "interactive", 1.0, 3.0, (80, 500), (40, 160), 2.5),
    Caller("reports", "batch", 0.5, 1.5, (400, 1400), (120, 360), 60.0),
    Caller("archive", "bulk", 0.3, 6.0, (500, 1800), (120, 420), 120.0),
)


async def main(seconds: float, executable: str | None) -> None:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # the processes below end with this one
    with tempfile.TemporaryDirectory() as directory:
        async with engine() as first, engine() as second, gateway(directory, first, second) as (url, admin):
            print(f"gateway {url}, dashboard {admin}/dashboard", flush=True)
            asking = asyncio.create_task(ask_on(url, seconds))
            typing = asyncio.create_task(asyncio.to_thread(terminal, admin, seconds))
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=executable)
                await look(browser, admin, seconds)
                await browser.close()
            await typing
            for name in PICTURES:
                with Image.open(DOCS / name) as picture:
                    picture.convert("RGB").quantize(COLOURS).save(DOCS / name, optimize=True)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def look(browser: Browser, admin: str, seconds: float) -> None:
    """The page watches from the beginning, so that its lines have something to tell."""
    light = await browser.new_context(viewport={"width": 1440, "height": 1180}, color_scheme="light", reduced_motion="reduce")
    page = await light.new_page()
    await page.goto(f"{admin}/dashboard")
    await page.locator("body[data-state=live]").wait_for()
    await asyncio.sleep(seconds - 4.0)
    await page.screenshot(path=DOCS / "dashboard.png")
    await page.emulate_media(color_scheme="dark")
    await page.screenshot(path=DOCS / "dashboard-dark.png")
    await page.emulate_media(color_scheme="light")
    await page.get_by_role("button", name="Refused").click()
    await page.locator(".open").first.click()
    await page.locator("#story-text p").nth(2).wait_for()
    await page.screenshot(path=DOCS / "dashboard-story.png")
    await page.keyboard.press("Escape")
    await page.set_viewport_size({"width": 320, "height": 900})
    await page.screenshot(path=DOCS / "dashboard-narrow.png")


def terminal(admin: str, seconds: float) -> None:
    """`headworks top` as textual draws it, without the web font that its picture would load from elsewhere."""
    every_s, port, shown = seconds / LATELY, AdminPort(admin, None), []

    def seen() -> Figures:
        return figures(state_of(port.look("/admin/snapshot")[1]))

    async def steps() -> None:
        screen = Top(seen, every_s)
        async with screen.run_test(size=(126, 58)):
            while screen.looks < LATELY:  # noqa: ASYNC110 (textual has no event for it)
                await asyncio.sleep(0.1)
            shown.append(screen.export_screenshot(title="headworks top"))

    asyncio.run(steps())
    (DOCS / "top.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", shown[0], flags=re.DOTALL))


# what is looked at


@asynccontextmanager
async def process(*command: str, **environment: str) -> AsyncIterator[asyncio.StreamReader]:
    """A process of our own and what it says."""
    around = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", *command, stdout=asyncio.subprocess.PIPE, env=around)
    assert child.stdout is not None
    try:
        yield child.stdout
    finally:
        with suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    async with process("headworks.testing.fake_engine", *ENGINE) as said:
        yield (await said.readline()).decode().removeprefix("listening on ").strip()


@asynccontextmanager
async def gateway(directory: str, *engines: str) -> AsyncIterator[tuple[str, str]]:
    """Its public URL and its admin port's."""
    keys = {f"PICTURE_{caller.tenant.upper()}": f"{caller.tenant}-key-of-the-picture" for caller in CALLERS}
    file = Path(directory) / "headworks.yaml"
    file.write_text(json.dumps(configuration(directory, engines)))
    async with process("headworks.cli.main", "serve", "--config", str(file), "--json", **keys) as said:
        listening = json.loads(await said.readline())
        for _ in engines:
            await said.readline()
        yield listening["listening"], listening["admin"]


def configuration(directory: str, engines: tuple[str, ...]) -> dict[str, object]:
    limits = {"shop": 8_000, "support": 6_000, "reports": 12_000, "archive": 16_000}
    return {
        "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_s": 1},
        "ledger": {"url": "memory:"},
        "log": {"decisions": f"{directory}/decisions"},
        "classes": {
            "interactive": {"slo": {"ttft_s": 0.6}},
            "batch": {"queue": {"wait_s_max": 20}},
            "bulk": {"queue": {"wait_s_max": 300, "requests_max": 60}},
        },
        "pools": {"llama": {"replicas": [{"url": url, "engine": "vllm"} for url in engines]}},
        "tenants": {
            caller.tenant: {
                "keys": [f"env:PICTURE_{caller.tenant.upper()}"],
                "class": caller.service_class,
                "active_tokens_max": limits[caller.tenant],
            }
            for caller in CALLERS
        },
    }


# who asks


async def ask_on(url: str, seconds: float) -> None:
    chance, began_s = random.Random(7), asyncio.get_running_loop().time()  # noqa: S311 (traffic, not secrets)
    limits = httpx.Limits(max_connections=OPEN_MAX)
    connected = httpx.AsyncClient(base_url=url, trust_env=False, timeout=180, limits=limits)
    async with connected as client, asyncio.TaskGroup() as group:
        for caller in CALLERS:
            group.create_task(callers(client, caller, random.Random(chance.random()), began_s, seconds))  # noqa: S311


async def callers(client: httpx.AsyncClient, caller: Caller, chance: random.Random, began_s: float, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while True:  # until it is cancelled
            is_burst = loop.time() - began_s > BURST_RATIO * seconds
            group.create_task(one(client, caller, chance))
            await asyncio.sleep(chance.expovariate(caller.burst_per_s if is_burst else caller.per_s))


async def one(client: httpx.AsyncClient, caller: Caller, chance: random.Random) -> None:
    """One call, until it is answered or its client has had enough."""
    body = {
        "model": "tiny",
        "stream": True,
        "messages": [{"role": "user", "content": "word " * chance.randint(*caller.prompt_words)}],
        "max_tokens": chance.randint(*caller.answer_tokens),
    }
    headers = {"Authorization": f"Bearer {caller.tenant}-key-of-the-picture"}
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(caller.patience_s * chance.uniform(0.5, 1.5)):
            async with client.stream("POST", "chat/completions", json=body, headers=headers) as answer:
                async for _ in answer.aiter_raw():
                    pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=190.0, help="how long is looked before the pictures are made")
    parser.add_argument("--browser", default=None, help="a Chromium to use instead of playwright's own")
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.browser))

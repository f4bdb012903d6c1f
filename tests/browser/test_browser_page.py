"""The page, as people use it: what it shows, with what key, by keyboard, narrow, and when nothing comes any more (F9)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from conftest import Stage
from playwright.async_api import Page, Route
from shown import READ, written

from headworks.gateway.looks import KEPT_MAX

WITH_KEY = {"server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_s": 1, "admin_key": "env:ADMIN"}}


def test_F9_every_number_on_the_page_is_that_of_the_snapshot_of_its_version(stage: Stage) -> None:
    async def steps() -> None:
        async with stage.page() as page:
            compared = set()
            for _ in range(3):
                shown = await page.evaluate(READ)
                answer = await stage.scene.admin(f"/admin/snapshot?version={shown['version']}")
                assert answer.status_code == 200, f"the last {KEPT_MAX} are kept"
                look = answer.json()
                wrong = [one for one in shown["figures"] if one["text"] != written(look, one["of"], one["as"])]
                assert wrong == []
                assert shown["loose"] == [], "a number that comes from nowhere"
                compared.add(shown["version"])
                assert {one["of"][0] for one in shown["figures"]} >= {"pools", "tenants", "classes", "decisions", "refusals"}
                assert len(shown["figures"]) > 90
                await page.wait_for_function("before => document.body.dataset.version !== before", arg=shown["version"])
            assert len(compared) == 3
            assert await page.locator("#queue tbody tr").count() == 1
            assert await page.locator("#refusals tbody th").inner_text() == "queue_full"

    stage.run(steps())


@pytest.mark.parametrize(("scheme", "width"), [("light", 320), ("dark", 1440)])
def test_F9_axe_finds_nothing_wrong_with_the_page_and_with_a_story(stage: Stage, scheme: str, width: int) -> None:
    async def steps() -> None:
        # The page's own policy forbids what axe does with scripts, so it is set aside for axe, and held to in all other tests.
        async with stage.page(color_scheme=scheme, width=width, bypass_csp=True, reduced_motion="reduce") as page:
            await accessible(page)
            await page.get_by_label("Request, key or execution").fill("turned-away")
            await page.keyboard.press("Enter")
            await page.locator("#story-text p").nth(2).wait_for()
            await accessible(page)

    stage.run(steps())


async def accessible(page: Page) -> None:
    found = await Axe().run(page, options={"resultTypes": ["violations"]})
    said = [(one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]]) for one in found.response["violations"]]
    assert said == []


def test_F9_nothing_has_to_be_scrolled_sideways(stage: Stage) -> None:
    async def steps() -> None:
        async with stage.page() as page:
            for width in (320, 375, 600, 768, 961, 1024, 1280, 1360, 1440, 1920):
                await page.set_viewport_size({"width": width, "height": 900})
                assert await page.evaluate(TOO_WIDE) == [], width
                assert await page.evaluate("document.documentElement.scrollWidth") <= width

    stage.run(steps())


TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter(n => n.checkVisibility()
  && n.scrollWidth > n.clientWidth + 1 && getComputedStyle(n).display !== "inline"
  && !n.closest("caption, thead, .skip")).map(n => n.outerHTML.slice(0, 120))"""
"""What has more in it than it is wide. Of a table that is shown as cards the heads are for screen readers only."""


def test_F9_everything_can_be_done_with_the_keyboard(stage: Stage) -> None:
    async def steps() -> None:
        async with stage.page() as page:
            await page.keyboard.press("Tab")
            assert await focused(page) == "Skip to the figures"
            await page.keyboard.press("Enter")
            assert await page.evaluate("document.activeElement.id") == "main"
            await page.keyboard.press("Shift+Tab")
            assert (await focused(page)).startswith("Theme")
            await page.keyboard.press("Enter")
            assert await page.evaluate("document.documentElement.dataset.theme") == "light"
            await page.keyboard.press("Shift+Tab")
            assert await focused(page) == "Pause"
            await page.keyboard.press("Space")
            await page.locator("#status[data-state=paused]").wait_for()
            await page.keyboard.press("Space")
            await page.get_by_role("button", name="Refused", exact=True).press("Enter")
            assert await page.locator("#decisions .open").count() == 1
            await page.keyboard.press("Tab")
            await page.keyboard.press("Tab")
            await page.keyboard.press("Tab")
            opener = await page.evaluate("document.activeElement.getAttribute('aria-label')")
            assert opener.startswith("The story of req_")
            await page.keyboard.press("Enter")
            await page.locator("#story-text p").nth(2).wait_for()
            story = await page.locator("#story-text").inner_text()
            assert "of tenant batchco (class batch" in story and "queue_full" in story
            await page.keyboard.press("Escape")
            assert not await page.locator("#story").is_visible()
            assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == opener

    stage.run(steps())


async def focused(page: Page) -> str:
    return str(await page.evaluate("document.activeElement.textContent"))


def test_F9_the_list_of_decisions_stands_still_while_somebody_is_in_it_and_pause_stops_everything(stage: Stage) -> None:
    async def steps() -> None:
        async with stage.page() as page:
            await page.locator("#decisions .open").first.focus()
            await page.locator("#held").wait_for()
            await page.locator("#asked").focus()
            await page.locator("#held").wait_for(state="hidden")
            await page.get_by_role("button", name="Pause").click()
            version = await page.evaluate("document.body.dataset.version")
            newest = stage.scene.app.feed._newest[0]
            await stage.scene.until(lambda: stage.scene.app.feed._newest[0] >= newest + 2)
            assert await page.evaluate("document.body.dataset.version") == version
            await page.get_by_role("button", name="Go on").click()
            await page.wait_for_function("before => document.body.dataset.version !== before", arg=version)

    stage.run(steps())


def test_H2_the_page_asks_for_the_admin_key_and_keeps_it_in_this_tab_only(stage: Stage) -> None:
    async def steps() -> None:
        from app_scene import ENVIRONMENT, scene

        async with scene(**WITH_KEY) as s:
            host, port = s.app.admin_address[:2]
            async with stage.page(wait="locked", url=f"http://{host}:{port}/dashboard") as page:
                addresses: list[str] = []
                page.on("request", lambda request: addresses.append(request.url))
                assert not await page.locator("main").is_visible()
                field = page.get_by_label("Admin key", exact=True)
                await field.fill("not-the-key")
                await page.keyboard.press("Enter")
                await page.get_by_text("The admin key is missing or wrong.").wait_for()
                assert await field.input_value() == ""
                await field.fill(ENVIRONMENT["ADMIN"])
                await page.get_by_role("button", name="Look").click()
                await page.locator("body[data-state=live][data-version]").wait_for()
                assert await page.locator("main").is_visible()
                await page.reload()
                await page.locator("body[data-state=live][data-version]").wait_for()
                kept = await page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href].join()")
                assert ENVIRONMENT["ADMIN"] not in kept + "".join(addresses)
                await page.get_by_role("button", name="Forget key").click()
                await page.locator("body[data-state=locked]").wait_for()
                assert await page.evaluate("sessionStorage.length") == 0
                await page.reload()
                await page.locator("body[data-state=locked]").wait_for()

    stage.run(steps())


def test_F9_a_page_without_its_gateway_says_since_when_and_comes_back_by_itself(stage: Stage) -> None:
    async def steps() -> None:
        from app_scene import scene

        async with scene() as s:
            host, port = s.app.admin_address[:2]
            s.texts["server"]["admin"] = f"{host}:{port}"
            async with stage.page(url=f"http://{host}:{port}/dashboard") as page:
                await s.app.stop()
                await page.locator("body[data-state=stale]").wait_for()
                before = await page.evaluate("document.querySelector('#facts').textContent")
                said = await page.locator("#status-text").inner_text()
                assert said.startswith("stale since ") and " UTC: " in said and said.split()[2] in before
                assert await page.locator("#flow .big").first.is_visible(), "what was seen last stays"
                await s.restart()
                await page.locator("body[data-state=live]").wait_for()
                await page.wait_for_function("before => document.querySelector('#facts').textContent !== before", arg=before)

    stage.run(steps())


def test_F9_silence_is_told_apart_from_calm(stage: Stage) -> None:
    async def steps() -> None:
        async with stage.page() as page:
            looking = stage.scene.app.feed._looking
            assert looking is not None
            looking.cancel()
            await page.get_by_text("nothing comes").wait_for()
            await page.locator("body[data-state=live]").wait_for()  # it came back on a connection of its own

    stage.run(steps())


HOSTILE = "<img src=x onerror=alert(1)>"


def test_H3_names_of_others_stay_names(stage: Stage) -> None:
    async def steps() -> None:
        look = json.loads((await stage.scene.admin("/admin/snapshot")).content)
        look["tenants"][HOSTILE] = look["tenants"]["acme"]
        look["refusals"][HOSTILE] = {"total": 1, "per_s": None}
        look["gateway"], look["troubles"] = HOSTILE, [HOSTILE]
        look["decisions"][0]["tenant"] = HOSTILE
        event = f"id: 1\ndata: {json.dumps(look)}\n\n"

        async def answer(route: Route) -> None:
            await route.fulfill(status=200, content_type="text/event-stream", body=event)

        async with stage.page(wait="") as page:
            await page.route("**/admin/feed", answer)
            await page.reload()
            await page.locator("body[data-version]").wait_for()
            assert await page.locator("img").count() == 0
            for section in ("#tenants tbody", "#refusals tbody", "#notices", "#facts"):
                assert HOSTILE in await page.locator(section).inner_text()

    stage.run(steps())


def test_F9_who_wants_no_motion_gets_none(stage: Stage) -> None:
    async def steps() -> None:
        moves: dict[str, Any] = {}
        for wish in ("reduce", "no-preference"):
            async with stage.page(reduced_motion=wish) as page:
                moves[wish] = await page.evaluate("document.getAnimations().length")
        assert moves["reduce"] == 0 and moves["no-preference"] > 0

    stage.run(steps())

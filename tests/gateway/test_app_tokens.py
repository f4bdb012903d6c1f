"""Signed tokens at a whole gateway, its issuer a real server that shows keys, changes them, hangs and lies (H2)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, chat, first_event, get, rest_of_stream, run, scene
from key_scene import bearer
from tls_files import made, needs_openssl
from tokens_made import SECTION, Jwks, jwks, public, shown, token

from headworks.config import build
from headworks.gateway import issuer_watch

TENANTS: dict[str, Any] = {
    "acme": {"keys": ["env:ACME_KEY"], "classes": ["interactive", "batch"], "class": "interactive"},
    "batchco": {"class": "bulk"},
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_watch, "LEAST_S", 0.2)
    monkeypatch.setattr(issuer_watch, "SOON_S", 0.05)
    monkeypatch.setattr(issuer_watch, "READ_S_MAX", 0.3)


@contextlib.asynccontextmanager
async def taking(page: Jwks, files: dict[str, str] | None = None, **section: Any) -> AsyncIterator[Scene]:
    async with shown(page, files):
        given = SECTION | {"keys_url": page.url, "refresh_s": 60} | section
        async with scene(tenants=TENANTS, jwt=given, pool={"models": ["tiny", "other"]}, classes=PATIENT) as s:
            yield s


async def asked(s: Scene, text: str, *fields: str) -> tuple[int, str]:
    answer = await s.ask(chat(bearer(text), *fields))
    return answer.status, "" if answer.status == 200 else answer.code


async def good(s: Scene, text: str) -> None:
    """Until a token is."""
    end_s = time.monotonic() + 10
    while (await asked(s, text))[0] != 200:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("loop", LOOPS)
def test_H2_a_token_opens_what_its_claims_say_and_keys_go_on_to(loop: str) -> None:
    async def steps() -> None:
        async with taking(Jwks(jwks(public("one"))), classes_claim="scope", models_claim="may") as s:
            text = token(scope="openid batch", may=["tiny"])
            answer = await s.ask(chat(bearer(text), "Headworks-Class: batch", "Idempotency-Key: k1"))
            assert answer.status == 200
            assert s.outcome("k1")["client"] == "acme/jwt:ann"
            assert await asked(s, text, "Headworks-Class: interactive") == (403, "forbidden")
            assert (await s.ask(chat(bearer(text), model="other"))).code == "model_not_found"
            listed = await s.ask(get("/v1/models", bearer(text)))
            assert [one["id"] for one in listed.json()["data"]] == ["tiny"]
            assert await asked(s, token()) == (403, "forbidden"), "no claim, no class"
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            client = await s.connect()  # and on one connection each head is looked at for itself
            for one, status in ((text, 200), (token(exp=1), 401), (text, 200)):
                client.send(chat(bearer(one)))
                assert (await client.answer()).status == status
            client.close()

    run(loop, steps())


def test_H2_a_token_ends_on_a_connection_that_goes_on() -> None:
    """The same bytes again and again, which a connection need not read twice."""

    async def steps() -> None:
        async with taking(Jwks(jwks(public("one"))), leeway_s=0) as s:
            ends_s = int(time.time()) + 2
            asking, client = chat(bearer(token(exp=ends_s))), await s.connect()
            statuses = [200]
            while statuses[-1] == 200 and time.time() < ends_s + 5:
                client.send(asking)
                statuses.append((await client.answer()).status)
            client.close()
            assert statuses[1] == 200 and statuses[-1] == 401 and time.time() >= ends_s

    run("uvloop", steps())


def test_H2_what_is_wrong_with_a_token_is_told_and_never_what_is_in_it() -> None:
    async def steps() -> None:
        async with taking(Jwks(jwks(public("one")))) as s:
            refused = await s.ask(chat(bearer(token(exp=1, team="canary-in-a-claim"))))
            assert (refused.status, refused.code, refused.fields["x-should-retry"]) == (401, "invalid_token", "false")
            assert refused.json()["error"]["message"] == "This token is not taken: it has expired."
            refused = await s.ask(chat(bearer(token(team="canary-in-a-claim"))))
            assert (refused.status, refused.code) == (403, "forbidden")
            assert b"canary" not in refused.body
            assert (await s.ask(chat(bearer("nobody")))).code == "invalid_api_key"
            assert (await s.ask(chat())).code == "invalid_api_key"

    run("uvloop", steps())


def test_H2_who_may_not_is_answered_before_a_byte_of_the_body_and_the_stock_client_understands() -> None:
    async def steps() -> None:
        async with taking(Jwks(jwks(public("one")))) as s:
            client = await s.connect()
            client.send(chat(bearer(token(aud="other"))).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            assert (await client.answer()).code == "invalid_token"
            client.close()
            host, port = s.app.address[:2]
            async with openai.AsyncOpenAI(api_key=token(), base_url=f"http://{host}:{port}/v1") as sdk:
                done = await sdk.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=3
                )
                assert done.usage is not None and done.usage.completion_tokens == 3
            async with openai.AsyncOpenAI(api_key=token(exp=1), base_url=f"http://{host}:{port}/v1") as sdk:
                with pytest.raises(openai.AuthenticationError, match="it has expired"):
                    await sdk.models.list()

    run("uvloop", steps())


def test_H2_a_new_key_is_found_by_the_first_token_that_names_it_and_an_old_one_closes_what_it_opened() -> None:
    async def steps() -> None:
        page = Jwks(jwks(public("one")))
        async with taking(page) as s:
            client = await s.connect()
            client.send(chat(bearer(token()), stream=True, tokens=80))
            await first_event(client)
            page.text = jwks(public("two"))
            told = await s.ask(chat(bearer(token("two"))))
            assert (told.status, told.code) == (503, "identity_unavailable")
            assert 0 < int(told.fields["retry-after-ms"]) < 60_000
            await s.until(lambda: page.asked == 2)
            await s.until(lambda: s.app.key_watch.keys.number > 2)
            assert await asked(s, token("two")) == (200, "")
            assert (await asked(s, token()))[0] in (503, 401), "it had been known from its first request on"
            assert (await rest_of_stream(client))[1], "what was let in before runs to its end"
            client.close()

    run("uvloop", steps())


def test_H2_the_stock_client_comes_through_a_rotation_by_itself() -> None:
    async def steps() -> None:
        page = Jwks(jwks(public("one")))
        async with taking(page) as s:
            page.text = jwks(public("one"), public("two"))
            host, port = s.app.address[:2]
            async with openai.AsyncOpenAI(api_key=token("two"), base_url=f"http://{host}:{port}/v1") as sdk:
                await sdk.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=3)

    run("uvloop", steps())


def test_H2_a_flood_of_unknown_keys_reads_the_issuers_keys_no_more_often() -> None:
    async def steps() -> None:
        page = Jwks(jwks(public("one")))
        async with taking(page) as s:
            began_s, answers = time.monotonic(), []
            body = token().split(".", 1)[1]
            head = token("two").split(".", 1)[0]
            for number in range(300):
                forged = (
                    head[:-4] + f"{number:04d}" if number % 2 else token("one", head={"kid": f"k{number}"}).split(".", 1)[0]
                )
                answers.append((await asked(s, f"{forged}.{body}"))[0])
            took_s = time.monotonic() - began_s
            assert set(answers) <= {401, 429, 503}
            assert page.asked <= 2 + took_s / 0.2, "the first, and one each time it may be"
            assert await asked(s, token()) == (200, "")

    run("uvloop", steps())


@pytest.mark.parametrize("what", ["down", "hangs", "garbage", "500", "redirect", "empty", "huge"])
def test_H2_an_issuer_that_fails_leaves_its_last_keys_for_the_stated_time_and_no_longer(what: str) -> None:
    async def steps() -> None:
        page = Jwks(jwks(public("one")))
        async with contextlib.AsyncExitStack() as stack:
            server = contextlib.AsyncExitStack()
            await server.enter_async_context(shown(page))
            port = int(page.url.split(":")[2].split("/")[0])
            given = SECTION | {"keys_url": page.url, "refresh_s": 0.05, "keep_s": 4}
            s = await stack.enter_async_context(scene(tenants=TENANTS, jwt=given, classes=PATIENT))
            assert await asked(s, token()) == (200, "")
            asked_before = page.asked
            if what == "down":
                await server.aclose()
            page.text = {"hangs": None, "garbage": b"<html>", "empty": b'{"keys": []}', "huge": b" " * 2_000_000}.get(
                what, b"{}"
            )
            page.status = {"500": "500 No", "redirect": "302 Found"}.get(what, "200 OK")
            changed_s = time.monotonic()
            if what != "down":
                await s.until(lambda: page.asked > asked_before)
            assert await asked(s, token()) == (200, ""), "by the keys it had"
            assert await asked(s, token(exp=1)) == (401, "invalid_token")
            while (await asked(s, token()))[0] == 200:
                assert time.monotonic() - changed_s < 12
                await asyncio.sleep(0.05)
            assert time.monotonic() - changed_s > 2.0
            assert await asked(s, token()) == (503, "identity_unavailable")
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200, "keys are not affected"
            page.text, page.status = jwks(public("one")), "200 OK"
            if what == "down":
                await server.enter_async_context(shown(page, port=port))
            await good(s, token())
            await server.aclose()

    run("uvloop", steps())


def test_H2_a_gateway_starts_without_its_issuer_and_takes_tokens_when_it_comes() -> None:
    async def steps() -> None:
        page = Jwks(None)
        async with taking(page) as s:
            assert await asked(s, token()) == (503, "identity_unavailable")
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            page.text = jwks(public("one"))
            await good(s, token())

    run("uvloop", steps())


def test_H2_keys_from_a_file_are_read_again_as_it_changes(tmp_path: Path) -> None:
    async def steps() -> None:
        file = tmp_path / "jwks.json"
        file.write_bytes(jwks(public("one")))
        given = SECTION | {"keys_file": str(file), "refresh_s": 0.05}
        async with scene(tenants=TENANTS, jwt=given) as s:
            assert await asked(s, token()) == (200, "")
            file.write_bytes(jwks(public("two")))
            await good(s, token("two"))
            file.unlink()
            assert await asked(s, token("two")) == (200, "")

    run("uvloop", steps())


@needs_openssl
@pytest.mark.parametrize(("name", "ca", "status"), [("localhost", True, 200), ("localhost", False, 503), ("other", True, 503)])
def test_H1_keys_of_an_issuer_come_over_tls_that_is_verified(name: str, ca: bool, status: int, tmp_path: Path) -> None:
    files = made(tmp_path, name=name, at=False)

    async def steps() -> None:
        more = {"keys_ca": files["cert"]} if ca else {}
        async with taking(Jwks(jwks(public("one"))), files, **more) as s:
            assert (await asked(s, token()))[0] == status

    run("uvloop", steps())


def test_H2_a_reload_changes_whom_tokens_name_and_not_where_the_keys_are() -> None:
    async def steps() -> None:
        page = Jwks(jwks(public("one")))
        async with taking(page) as s:
            assert await asked(s, token(), "Headworks-Class: bulk") == (403, "forbidden")
            await s.reload(s.text(jwt={"tenants": {"acme": "batchco"}}))
            assert await asked(s, token(), "Headworks-Class: bulk") == (200, "")
            assert page.asked == 1
            moved = s.text(jwt={"keys_url": "https://elsewhere.example/keys"})
            assert s.app.fixed(build.settings(moved, ENVIRONMENT)) == ["issuer_keys"]

    run("uvloop", steps())


def test_H2_a_reload_to_algorithms_that_no_key_is_for_is_taken_whole_and_can_be_taken_back() -> None:
    async def steps() -> None:
        async with taking(Jwks(jwks(public("one")))) as s:
            await s.reload(s.text(jwt={"algorithms": ["ES256"]}))
            assert await asked(s, token()) == (503, "identity_unavailable")
            assert (await s.ask(chat(key="ACME_KEY"))).status == 200
            await s.reload(s.text(jwt={"algorithms": ["RS256"]}))
            await good(s, token())

    run("uvloop", steps())


def test_H2_no_token_and_no_claim_stands_in_a_log_or_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        async with taking(Jwks(jwks(public("one")))) as s:
            text = token(secret="canary-in-a-claim")
            for one in (text, text[:-4] + "AAAA", token(team="canary-in-a-claim")):
                await asked(s, one, "Idempotency-Key: k1")
            pages = [(await s.admin(path)).text for path in ("/metrics", "/admin/snapshot")]
            written = "".join([*pages, caplog.text, json.dumps(s.everything("decision")), json.dumps(s.everything("outcome"))])
            for never in ("canary", text[-40:], text.split(".")[1][:40]):
                assert never not in written

    run("uvloop", steps())

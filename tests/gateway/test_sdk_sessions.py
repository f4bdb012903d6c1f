"""Whole sessions by the stock OpenAI and Anthropic clients, opened and closed by the client library (B14, F8).

Before a fake engine, and the first two before a real vLLM as well, where one is named (`fronts.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from app_scene import PATIENT, Scene, chat, first_event, run, scene
from fronts import Front, on_engines

from headworks.client import OverloadError, RetryPolicy, RetryTransport, async_session, session

KEY = "acme-key-of-the-test"
TALK: list[Any] = [{"role": "user", "content": "one two three"}]
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "sessions.md"


def url_of(s: Scene) -> str:
    host, port = s.app.address[:2]
    return f"http://{host}:{port}"


def held(s: Scene) -> list[int]:
    return [s.held(scope) for scope in ("tenant:acme", "pool:llama", "sessions:llama")]


def in_thread(work: Callable[[Scene], None], front: Front = scene, **sections: Any) -> None:
    """Run what blocking clients do. The scene ends with nothing held anywhere."""

    async def steps() -> None:
        async with front(**{"tenants": TENANTS, "classes": PATIENT, **sections}) as s:
            await asyncio.to_thread(work, s)

    run("uvloop", steps(), within_s=60)


def settles(s: Scene, url: str, tokens: int) -> None:
    """So much is held as soon as what ended has been told to the ledger. From a client's thread: asked until it is so."""
    with httpx.Client() as http:
        for _ in range(500):
            http.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})  # a turn of the gateway's loop
            if held(s) == [tokens] * 3:
                return
    raise AssertionError(held(s))


@on_engines
def test_B14_both_sdks_work_through_one_session_and_what_is_left_comes_back(front: Front) -> None:
    def work(s: Scene) -> None:
        url = url_of(s)
        with (
            httpx.Client() as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as one,
            anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as other,
        ):
            with session(http, 2_000, url=url, key=KEY, deadline_s=60) as budget:
                assert (budget.tokens, 59.0 < budget.expires_s <= 60.0) == (2_000, True)
                assert budget.headers == {"Headworks-Session": budget.name}
                spent = 0
                whole = one.chat.completions.create(model="tiny", messages=TALK, max_tokens=5, extra_headers=budget.headers)
                assert whole.usage is not None
                spent += whole.usage.total_tokens
                settles(s, url, 2_000 - spent)
                asked: Any = {"stream": True, "stream_options": {"include_usage": True}, "extra_headers": budget.headers}
                chunks = list(one.chat.completions.create(model="tiny", messages=TALK, max_tokens=6, **asked))
                spent += chunks[-1].usage.total_tokens
                response = one.responses.create(model="tiny", input="go on", max_output_tokens=7, extra_headers=budget.headers)
                assert response.usage is not None
                spent += response.usage.total_tokens
                settles(s, url, 2_000 - spent)
                message = other.messages.create(model="tiny", max_tokens=8, messages=TALK, extra_headers=budget.headers)
                spent += message.usage.input_tokens + message.usage.output_tokens
                with other.messages.stream(model="tiny", max_tokens=9, messages=TALK, extra_headers=budget.headers) as stream:
                    final = stream.get_final_message()
                spent += final.usage.input_tokens + final.usage.output_tokens
                settles(s, url, 2_000 - spent)
            assert held(s) == [0, 0, 0], "it was closed as the block was left"
            with pytest.raises(openai.RateLimitError) as over:
                one.chat.completions.create(model="tiny", messages=TALK, max_tokens=5, extra_headers=budget.headers)
            assert over.value.code == "session_exhausted"
            with pytest.raises(anthropic.RateLimitError) as gone:
                other.messages.create(model="tiny", max_tokens=5, messages=TALK, extra_headers=budget.headers)
            body: Any = gone.value.body
            assert body["error"]["code"] == "session_exhausted"

    in_thread(work, front)


@on_engines
def test_B14_the_async_clients_too(front: Front) -> None:
    async def steps() -> None:
        async with front(tenants=TENANTS, classes=PATIENT) as s:
            url = url_of(s)
            async with (
                httpx.AsyncClient() as http,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as one,
                anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as other,
                async_session(http, 2_000, url=url, key=KEY, model="tiny") as budget,
            ):
                assert 3_590.0 < budget.expires_s <= 3_600.0, "an hour unless it says otherwise"
                whole, message = await asyncio.gather(
                    one.chat.completions.create(model="tiny", messages=TALK, max_tokens=5, extra_headers=budget.headers),
                    other.messages.create(model="tiny", max_tokens=6, messages=TALK, extra_headers=budget.headers),
                )
                assert whole.usage is not None
                spent = whole.usage.total_tokens + message.usage.input_tokens + message.usage.output_tokens
                await s.until(lambda: held(s) == [2_000 - spent] * 3)
            assert held(s) == [0, 0, 0]

    run("uvloop", steps())


def test_B14_calls_run_while_the_same_keys_other_requests_are_refused() -> None:
    """The tenant's whole limit is the session's; the SDK beside it, without the header, is told to come back."""

    def work(s: Scene) -> None:
        url = url_of(s)
        with httpx.Client() as http, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            with session(http, 1_000, url=url, key=KEY) as budget:
                with pytest.raises(openai.RateLimitError) as refused:
                    client.chat.completions.create(model="tiny", messages=TALK, max_tokens=5)
                assert refused.value.code == "tenant_capacity_exceeded"
                answer = client.chat.completions.create(model="tiny", messages=TALK, max_tokens=5, extra_headers=budget.headers)
                assert answer.usage is not None and answer.usage.completion_tokens == 5
            assert client.chat.completions.create(model="tiny", messages=TALK, max_tokens=5).usage is not None

    limited = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 1_000}}
    in_thread(work, tenants=limited, classes={"interactive": {"on_tenant_full": "refuse"}})


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_B14_however_the_block_is_left_the_rest_comes_back(is_async: bool) -> None:
    class Mine(Exception):
        """The caller's own."""

    async def in_async(s: Scene) -> None:
        async with httpx.AsyncClient() as http, async_session(http, 500, url=url_of(s), key=KEY):
            assert held(s) == [500, 500, 500]
            raise Mine

    def in_sync(s: Scene) -> None:
        with httpx.Client(base_url=url_of(s), headers={"Authorization": f"Bearer {KEY}"}) as http, session(http, 500):
            assert held(s) == [500, 500, 500]
            raise Mine

    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            with pytest.raises(Mine):
                await (in_async(s) if is_async else asyncio.to_thread(in_sync, s))
            assert held(s) == [0, 0, 0]

    run("uvloop", steps())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_B14_a_last_word_that_does_not_arrive_hides_nothing_and_the_session_ends_by_itself(is_async: bool) -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, pool={"sessions": {"idle_s": 0.3}}) as s:
            refusing = httpx.ConnectError("nobody listens")

            def handle(request: httpx.Request) -> None:
                if request.method == "DELETE":
                    raise refusing

            async def handle_async(request: httpx.Request) -> None:
                handle(request)

            def in_sync() -> None:
                with httpx.Client(event_hooks={"request": [handle]}) as http, session(http, 500, url=url_of(s), key=KEY):
                    pass

            if is_async:
                async with (
                    httpx.AsyncClient(event_hooks={"request": [handle_async]}) as http,
                    async_session(http, 500, url=url_of(s), key=KEY),
                ):
                    pass
            else:
                await asyncio.to_thread(in_sync)
            assert held(s) == [500, 500, 500]
            await s.until(lambda: held(s) == [0, 0, 0])

    run("uvloop", steps())


def test_B14_a_refused_opening_is_the_libraries_own_exception_and_runs_no_block() -> None:
    def work(s: Scene) -> None:
        with httpx.Client() as http:
            for tokens, key, status in ((10_000_000, KEY, 400), (500, "wrong", 401)):
                with pytest.raises(httpx.HTTPStatusError) as refused, session(http, tokens, url=url_of(s), key=key):
                    raise AssertionError("the block runs in no session")
                assert refused.value.response.status_code == status

    in_thread(work)


def test_B14_opening_is_asked_again_at_its_slot_by_the_librarys_transport() -> None:
    """The pool is full of a stream: refused with a hint, and open at the second try, as the stream has ended."""

    async def steps() -> None:
        limited = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 1_200}}
        async with scene(tenants=limited, classes={"interactive": {"on_tenant_full": "refuse"}}) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=1_900))
            await first_event(running)
            waited: list[float] = []
            loop = asyncio.get_running_loop()

            def sleep(seconds: float) -> None:
                waited.append(seconds)
                loop.call_soon_threadsafe(running.close)
                asyncio.run_coroutine_threadsafe(s.until(lambda: held(s)[0] == 0), loop).result(10)

            def work() -> None:
                transport = RetryTransport(policy=RetryPolicy(retries_max=20), sleep=sleep)
                with httpx.Client(transport=transport) as http, session(http, 1_000, url=url_of(s), key=KEY) as budget:
                    assert budget.tokens == 1_000
                hasty = RetryTransport(policy=RetryPolicy(hint_s_max=0.001))
                with (
                    httpx.Client(transport=hasty) as http,
                    session(http, 700, url=url_of(s), key=KEY),
                    pytest.raises(OverloadError),
                    session(http, 700, url=url_of(s), key=KEY),
                ):
                    raise AssertionError("there is no room for two")

            await asyncio.to_thread(work)
            assert len(waited) >= 1

    run("uvloop", steps())


def test_B14_the_pages_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setenv("ACME_KEY", KEY)

    def work(s: Scene) -> None:
        host, port = s.app.address[:2]
        exec(compile(block.replace("127.0.0.1:8080", f"{host}:{port}"), str(PAGE), "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out.count("completion_tokens=8") == 2

    in_thread(work)

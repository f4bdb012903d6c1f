"""The client library under the stock OpenAI SDK, sync and async, against the whole gateway (F8, B15)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from app_scene import ENVIRONMENT, PATIENT, Scene, chat, first_event, run, scene

from headworks.client import AsyncRetryTransport, OverloadError, RetryPolicy, RetryTransport
from headworks.logs import reading

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}
TENANTS = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
REFUSING = {"interactive": {"on_tenant_full": "refuse"}}
both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


async def ask(s: Scene, is_async: bool, policy: RetryPolicy | None, waited: list[float], n: int = 1, **more: Any) -> Any:
    """One chat through the SDK on our transport. Waits are noted, and not slept through but for a moment."""
    host, port = s.app.address[:2]
    given = {"base_url": f"http://{host}:{port}/v1", "api_key": ENVIRONMENT["ACME_KEY"], **more}
    fields = {**ASK, "n": n}

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(min(seconds, 0.05))

    if is_async:
        http = httpx.AsyncClient(transport=AsyncRetryTransport(policy=policy, sleep=sleep))
        async with openai.AsyncOpenAI(**given, http_client=http) as client:
            return await client.chat.completions.create(**fields)

    def work() -> Any:
        transport = RetryTransport(policy=policy, sleep=lambda seconds: asyncio.run(sleep(seconds)))
        with openai.OpenAI(**given, http_client=httpx.Client(transport=transport)) as client:
            return client.chat.completions.create(**fields)

    return await asyncio.to_thread(work)


def hints_s(s: Scene) -> list[float]:
    """What was told in each refusal, from the gateway's own log."""
    assert s.app.log is not None
    s.app.log.flush()
    directory = Path(s.app.log.directory)
    lines = [line for path in sorted(directory.glob("*.jsonl")) for line in reading.lines(path)]
    return [
        1.0 if line["record"]["retry_after_s"] is None else line["record"]["retry_after_s"]
        for line in lines
        if line["kind"] == "decision" and line["record"]["outcome"] == "refuse"
    ]


def with_the_tenant_full(steps: Callable[[Scene, Any], Any]) -> None:
    """Its one place is taken by a stream that `steps` may end."""

    async def test() -> None:
        async with scene(tenants=TENANTS, classes=REFUSING) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=1_900))
            await first_event(running)
            before = s.app.server.counters.requests
            await steps(s, running)
            running.close()
            assert s.app.server.counters.requests - before > 0

    run("uvloop", test())


@both
def test_F8_the_sdk_comes_back_at_its_slot_and_is_served(is_async: bool) -> None:
    async def steps(s: Scene, running: Any) -> None:
        waited: list[float] = []
        asking = asyncio.ensure_future(ask(s, is_async, RetryPolicy(retries_max=40), waited, max_retries=0))
        await s.until(lambda: len(waited) >= 1, 20.0)
        running.close()
        answer = await asking
        assert answer.usage.completion_tokens == 5
        told = hints_s(s)
        assert len(waited) == len(told)
        assert all(waiting >= round(hint, 3) for waiting, hint in zip(waited, told, strict=True)), "not before its hint"
        assert s.app.registry.render().decode().count('attempt="retry"') == 1

    with_the_tenant_full(steps)


@both
def test_F8_retries_of_the_sdk_are_kept_apart(is_async: bool) -> None:
    """Left on, as they are by default: of its two and our one there is one."""

    async def steps(s: Scene, running: Any) -> None:
        waited: list[float] = []
        before = s.app.server.counters.requests
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(s, is_async, RetryPolicy(retries_max=1), waited)
        assert caught.value.code == "tenant_capacity_exceeded"
        assert s.app.server.counters.requests - before == 2
        assert len(waited) == 1

    with_the_tenant_full(steps)


@both
def test_F8_a_hint_above_the_cap_reaches_the_caller_through_the_sdk(is_async: bool) -> None:
    async def steps(s: Scene, running: Any) -> None:
        before, waited = s.app.server.counters.requests, []
        with pytest.raises(OverloadError) as caught:
            await ask(s, is_async, RetryPolicy(hint_s_max=0.01), waited)
        assert s.app.server.counters.requests - before == 1, "and its own retries did not ask again"
        assert waited == []
        (told,) = hints_s(s)
        assert caught.value.hint_s == pytest.approx(told, abs=0.001)
        body = json.loads(caught.value.content)
        assert body["error"]["code"] == "tenant_capacity_exceeded"
        assert body["headworks"]["decision"].startswith("req_")

    with_the_tenant_full(steps)


@both
def test_F8_what_no_retry_can_cure_is_asked_once(is_async: bool) -> None:
    async def test() -> None:
        async with scene(tenants=TENANTS) as s:
            before, waited = s.app.server.counters.requests, []
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(s, is_async, None, waited, n=2)
            assert caught.value.code == "request_exceeds_capacity"
            assert s.app.server.counters.requests - before == 1
            assert waited == []

    run("uvloop", test())


def test_F8_the_pages_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block as it stands, but for the address."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.setenv("ACME_KEY", ENVIRONMENT["ACME_KEY"])

    async def test() -> None:
        async with scene(tenants={"acme": {"keys": ["env:ACME_KEY"]}}, classes=PATIENT) as s:
            host, port = s.app.address[:2]
            for block in blocks:
                code = compile(block.replace("127.0.0.1:8080", f"{host}:{port}"), str(PAGE), "exec")
                await asyncio.to_thread(exec, code, {"__name__": "__main__"})
            printed = capsys.readouterr().out
            assert "completion_tokens=8" in printed
            assert printed.endswith("200\n")
            assert "come back" not in printed

    run("uvloop", test())

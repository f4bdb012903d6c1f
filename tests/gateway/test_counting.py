"""Counting prompts by a tokenizer (C1): when, off the loop, within its budget, and what happens without."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from app_scene import Scene, call, run, scene
from tokenizer_made import SENTENCES, file, made, tokens

from headworks.config import build
from headworks.gateway.counting import COUNT_S_MAX, TEXT_CHARS_MAX, Counting, TokenizerError
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed

LONG = " ".join(SENTENCES[::3]) * 30
"""6,000 characters, of which a token of this vocabulary covers several."""


def parsed(route: Any, **fields: Any) -> Parsed:
    found = route.parse(json.dumps({"model": "tiny", "max_tokens": 10, **fields}).encode(), Limits(1_000_000))
    assert isinstance(found, Parsed), found
    return found


def counted(counting: Counting, *asked: Parsed, from_chars: int = 0) -> list[int | None]:
    async def all_of_them() -> list[int | None]:
        return list(await asyncio.gather(*(counting.tokens(one, from_chars) for one in asked)))

    try:
        return asyncio.run(all_of_them())
    finally:
        counting.close()


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    return Counting({"tiny": file(tmp_path)})


def test_C1_everything_a_template_writes_is_counted(counting: Counting) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = parsed(chat, tools=[tool], messages=[{"role": "user", "content": SENTENCES[0], "name": "jo"}])
    texts = (SENTENCES[0], "jo", json.dumps([tool], indent=4))
    assert counted(counting, asked) == [sum(tokens(made(), text) for text in texts) + 8 + 64]


def test_C1_several_prompts_are_counted_and_charged_their_mean(counting: Counting) -> None:
    one, other = (tokens(made(), text) for text in SENTENCES[:2])
    asked = parsed(completions, prompt=list(SENTENCES[:2]), n=2)
    assert (asked.samples, counted(counting, asked)) == (4, [-(-(one + other) // 2)])


def test_C1_a_prompt_of_fewer_characters_is_not_counted(counting: Counting) -> None:
    wide = parsed(completions, prompt="人" * 2_000)
    assert counted(counting, wide, parsed(completions, prompt="x" * 5_000), from_chars=5_000)[0] is None, "bytes are not it"


def test_C1_what_is_too_long_or_too_much_at_once_is_not_counted(counting: Counting) -> None:
    too_long = parsed(completions, prompt="x " * (TEXT_CHARS_MAX // 2 + 1))
    much = parsed(completions, prompt="one two " * 90_000)

    async def steps() -> None:
        asked = [asyncio.ensure_future(counting.tokens(one, 0)) for one in (too_long, much, much, much)]
        await asyncio.sleep(0)
        assert [one.done() for one in asked] == [True, False, False, True], "two million characters wait at most"
        assert asked[0].result() is asked[3].result() is None
        await asyncio.gather(*asked)

    asyncio.run(steps())
    counting.close()


def test_C1_nobody_waits_longer_than_the_limit_and_the_loop_goes_on(counting: Counting) -> None:
    asked = parsed(completions, prompt="it was the age of wisdom, " * 35_000)

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        begun_s, turns = loop.time(), 0
        counts = asyncio.ensure_future(counting.tokens(asked, 0))
        while not counts.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert await counts is None
        assert loop.time() - begun_s < COUNT_S_MAX + 0.4, "the count itself takes longer"
        assert turns >= 10

    asyncio.run(steps())
    counting.close()


def test_C1_a_file_that_is_no_tokenizer_is_told_at_the_start(tmp_path: Path) -> None:
    for content in (None, "", "{}", "[1]"):
        path = tmp_path / "tokenizer.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer file"):
            Counting({"tiny": str(path)})


def prompt(text: str, **more: Any) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
    return call("/v1/chat/completions", body=body)


async def counted_work_of(made_scene: Scene, payload: bytes) -> dict[str, Any]:
    """The same where it is counted in time; on a busy machine that may take another try."""
    for _ in range(20):
        work = await work_of(made_scene, payload)
        if work["basis"] == "counted":
            return work
    raise AssertionError("it was never counted")


async def work_of(made_scene: Scene, payload: bytes) -> dict[str, Any]:
    answer = await made_scene.ask(payload)
    assert answer.status == 200, answer.body
    records = made_scene.records(answer.fields["x-request-id"])
    (decision,) = [record for record in records if record["kind"] == "decision"]
    work: dict[str, Any] = decision["work"]
    return work


def test_C1_long_prompts_are_counted_where_their_model_has_a_tokenizer(tmp_path: Path) -> None:
    exact = tokens(made(), LONG)

    async def steps() -> None:
        models = {"tiny": {"tokenizer": file(tmp_path)}}
        async with scene(models=models, pool={"estimate": {"tokenizer_from_chars": 4_000}}) as made_scene:
            work = await counted_work_of(made_scene, prompt(LONG))
            assert (work["basis"], work["prefill_tokens"]) == ("counted", exact + 8 + 32)
            assert (await work_of(made_scene, prompt("short")))["basis"] == "bytes"
            other = made_scene.text(models={"tiny": {"tokenizer": "elsewhere.json"}})
            assert made_scene.app.fixed(build.settings(other, {})) == ["tokenizers"], "it takes a restart"

    run("uvloop", steps())


def test_C1_a_short_prompt_is_counted_where_its_bytes_leave_open_if_it_fits(tmp_path: Path) -> None:
    async def steps() -> None:
        models = {"tiny": {"tokenizer": file(tmp_path)}}
        async with scene(models=models, pool={"active_tokens_max": 2_000}) as made_scene:
            assert (await counted_work_of(made_scene, prompt(LONG[:3_000])))["prefill_tokens"] < 2_000
            assert (await work_of(made_scene, prompt(LONG[:300])))["basis"] == "bytes"

    run("asyncio", steps())


def test_C1_without_a_tokenizer_the_same_prompt_runs_by_its_bytes() -> None:
    async def steps() -> None:
        async with scene(pool={"active_tokens_max": 2_000}) as made_scene:
            work = await work_of(made_scene, prompt(LONG[:3_000]))
            assert (work["basis"], work["tokens"]) == ("bytes", 2_000)

    run("uvloop", steps())


def test_C1_a_client_that_leaves_while_its_prompt_is_counted_leaves_nothing(tmp_path: Path) -> None:
    async def steps() -> None:
        models = {"tiny": {"tokenizer": file(tmp_path)}}
        async with scene(models=models) as made_scene:
            counting = made_scene.app.counting
            assert counting is not None
            client = await made_scene.connect()
            client.send(prompt("it was the age of wisdom, " * 20_000))
            await made_scene.until(lambda: counting._waiting_chars > 0)
            client.close()
            await made_scene.until(lambda: counting._waiting_chars == 0)
            assert (await work_of(made_scene, prompt("short")))["basis"] == "bytes"

    run("uvloop", steps())

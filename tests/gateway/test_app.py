"""The whole gateway in front of an engine: what a client gets, and what is held while it gets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from app_scene import LOOPS, chat, completion, events, get, run, scene

both_loops = pytest.mark.parametrize("loop", LOOPS)


@both_loops
@pytest.mark.parametrize("usage_asked", [True, False], ids=["usage", "no-usage"])
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
def test_K21_streamed_usage_is_the_engines_and_shown_only_if_asked(ask: Any, usage_asked: bool, loop: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            more = {"stream_options": {"include_usage": True}} if usage_asked else {}
            answer = await s.ask(ask("Idempotency-Key: k1", stream=True, tokens=12, **more))
            assert answer.status == 200
            assert answer.fields["content-type"].startswith("text/event-stream")
            got = events(answer.body)
            assert got[-1] == "[DONE]"
            assert [choice["finish_reason"] for event in got[:-1] for choice in event["choices"]][-1] == "length"
            with_usage = [event for event in got[:-1] if event.get("usage")]
            assert len(with_usage) == usage_asked
            await s.settled()
            outcome = s.outcome("k1")
            assert outcome["outcome"] == "completed"
            assert outcome["evidence"] == "E1"
            usage = outcome["usage"]
            assert (usage["output_tokens"], usage["end"], usage["exact"]) == (12, "length", True)
            if usage_asked:
                assert with_usage[0]["usage"]["prompt_tokens"] == usage["prompt_tokens"]

    run(loop, steps())

"""The end of a whole answer, read without the rest, says what the whole says (E1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headworks.gateway.engine_words import PromptDetails, WireUsage
from headworks.gateway.event_stream import ABORTED, UNREADABLE, read_answer

USAGE = {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}
SAID = WireUsage(5, 2)
QUOTED = 'it said {"choices":[{"finish_reason":"abort"}],"usage":{"prompt_tokens":9}} and then "finish_reason": "abort"'


def choice(reason: str | None = "length", text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"content": text}, "logprobs": None, "finish_reason": reason, **more}


def written(*choices: dict[str, Any], compact: bool = True, **more: Any) -> bytes:
    answer = {"id": "x", "choices": list(choices), "usage": USAGE, **more}
    return json.dumps(answer, separators=(",", ":") if compact else None).encode()


@pytest.mark.parametrize(
    ("body", "reason", "usage"),
    [
        pytest.param(written(choice()), "length", SAID, id="vllm"),
        pytest.param(written(choice(stop_reason=None), kv=None, compact=False), "length", SAID, id="spaced"),
        pytest.param(written(choice(text=QUOTED)), "length", SAID, id="quoted"),
        pytest.param(written(choice(ABORTED)), ABORTED, SAID, id="aborted"),
        pytest.param(written(choice(None)), "stop", SAID, id="no reason"),
        pytest.param(written(choice("stop"), usage=None), "stop", None, id="no usage"),
        pytest.param(
            written(choice(), usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}),
            "length",
            WireUsage(5, 2, PromptDetails(4)),
            id="cached",
        ),
        pytest.param(
            b'{"usage":%b,"choices":[{"finish_reason":"length"}]}' % json.dumps(USAGE).encode(),
            "length",
            SAID,
            id="usage first",
        ),
        pytest.param(written(choice("stop"), trace={"was": [{"finish_reason": "abort"}]}), "stop", SAID, id="deeper"),
        pytest.param(written(choice("stop"), was=[{"finish_reason": "abort"}]), "stop", SAID, id="beside"),
        pytest.param(written(choice("stop"), usage={**USAGE, "prompt_tokens": -1}), "stop", None, id="absurd usage"),
        pytest.param(b'["finish_reason":"stop"}],"usage":{}}', "stop", None, id="no answer"),
    ],
)
def test_E1_the_end_of_an_answer_says_what_the_whole_says(body: bytes, reason: str, usage: WireUsage | None) -> None:
    assert read_answer(body, 1) == (reason, usage)
    assert read_answer(body) == (reason, usage)


def test_E1_of_several_choices_all_are_read() -> None:
    body = written(choice(ABORTED), choice("stop"))
    assert read_answer(body, 2) == (ABORTED, SAID)


def test_E1_an_answer_that_was_cut_anywhere_proves_nothing() -> None:
    body = written(choice(text=QUOTED), kv={"a": [1]})
    assert {read_answer(body[:end], 1) for end in range(len(body))} == {(UNREADABLE, None)}
    assert read_answer(body, 1) == ("length", SAID)

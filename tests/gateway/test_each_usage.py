"""The usage of several answers to one request, added up of what each states (A10, E2)."""

from __future__ import annotations

import json

import pytest

from headworks.gateway.each_usage import EachUsage


def part(index: int, output_tokens: int) -> bytes:
    usage = {"prompt_tokens": 10, "completion_tokens": output_tokens, "total_tokens": 10 + output_tokens}
    choices = [{"index": index, "delta": {}, "finish_reason": "stop"}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode()


@pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n"])
@pytest.mark.parametrize("asked", [True, False])
def test_E2_the_last_part_counts_also_where_the_stream_ends_without_an_empty_line(ending: bytes, asked: bool) -> None:
    stream = EachUsage(2, 1, asked).stream()
    shown = stream.take(part(0, 3) + b"\n\n")
    shown += stream.take(part(1, 4) + ending)
    shown += stream.close()
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (10, 7)
    assert stream.finished == {0: "stop", 1: "stop"}
    last = json.loads(shown.split(b"\n\n")[1].removeprefix(b"data: "))
    assert last.get("usage", {}).get("total_tokens") == (17 if asked else None)

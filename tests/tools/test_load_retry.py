"""Retries follow the stock client's rules (B15): by a table, and beside the client itself."""

from __future__ import annotations

import asyncio
from random import Random

import openai
import pytest
import scripted_server as wire
from scripted_server import serving

from headworks.tools import load
from headworks.tools.load_retry import wait_s


@pytest.mark.parametrize(
    ("status", "hints", "retries", "expected_s"),
    [
        (429, {"retry-after": "5"}, 0, 5.0),
        (429, {"retry-after": "5", "retry-after-ms": "250"}, 0, 0.25),
        (429, {"retry-after": "61"}, 1, 61.0),
        (429, {"retry-after": "121"}, 0, None),
        (429, {"retry-after": "121", "x-should-retry": "true"}, 0, None),
        (429, {"retry-after-ms": "250", "x-should-retry": "false"}, 0, None),
        (429, {"retry-after-ms": "250"}, 2, None),
        (503, {"retry-after-ms": "10"}, 0, 0.01),
        (409, {"retry-after-ms": "10"}, 1, 0.01),
        (400, {"retry-after-ms": "10"}, 0, None),
        (400, {"retry-after-ms": "10", "x-should-retry": "true"}, 0, 0.01),
        (422, {}, 0, None),
    ],
)
def test_B15_hints_are_obeyed_exactly(status: int, hints: dict[str, str], retries: int, expected_s: float | None) -> None:
    assert wait_s(status, hints, retries, Random(1)) == expected_s


@pytest.mark.parametrize(("hints", "retries", "longest_s"), [({}, 0, 0.5), ({}, 1, 1.0), ({"retry-after": "0"}, 0, 0.5)])
def test_B15_without_a_hint_the_wait_doubles_less_up_to_a_quarter(
    hints: dict[str, str], retries: int, longest_s: float
) -> None:
    random = Random(1)
    waits = [wait_s(429, hints, retries, random) or 0.0 for _ in range(200)]
    assert 0.75 * longest_s <= min(waits) < 0.78 * longest_s
    assert 0.97 * longest_s < max(waits) <= longest_s


CASES = [
    ("429 Too Many Requests", ["retry-after-ms: 20"], 3),
    ("429 Too Many Requests", ["retry-after-ms: 20", "x-should-retry: false"], 1),
    ("503 Service Unavailable", ["retry-after-ms: 20"], 3),
    ("409 Conflict", ["retry-after-ms: 20"], 3),
    ("422 Unprocessable Entity", ["retry-after-ms: 20"], 1),
    ("400 Bad Request", ["retry-after-ms: 20", "x-should-retry: true"], 3),
]


@pytest.mark.parametrize(("status", "headers", "requests"), CASES)
def test_B15_the_driver_asks_as_often_as_the_stock_client(status: str, headers: list[str], requests: int) -> None:
    refused = wire.refusal(status, "queue_full", *headers)

    async def run() -> tuple[int, list[str]]:
        async with serving(lambda number: [refused]) as scripted:
            client = openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="k")
            with pytest.raises(openai.APIStatusError):
                await client.completions.create(model="tiny", prompt="a", stream=True)
            await client.close()
            by_client = len(scripted.heads)
            plan = load.Plan(url=scripted.url, rate_per_s=1.0, seconds=1.0, seed=4, retries="sdk")
            made = await load.run(plan)
            assert len(made.calls) == 1
            return by_client, scripted.heads[by_client:]

    by_client, heads = asyncio.run(run())
    assert by_client == requests
    counts = [line[25:] for head in heads for line in head.split("\r\n") if line.startswith("x-stainless-retry-count: ")]
    assert counts == [str(number) for number in range(requests)]

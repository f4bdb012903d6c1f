"""C1's table: whatever a prompt is made of, its upper bound is never under what a tokenizer makes of it."""

from __future__ import annotations

import base64
import json
import random
from functools import cache
from typing import Any

import pytest
from tokenizer_made import made, tokens
from tokenizers import Tokenizer

from headworks.core.estimate import Estimator
from headworks.core.policy import PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.types import Capacity, Request, RequestKey, Usage, Work
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed

SEED = 20261130
DRAW = random.Random(SEED)
NOBODY = TenantPolicy("acme")
RECORDS = [{"id": number, "name": f"item {number}", "price": number * 1.07, "tags": ["a", "b"]} for number in range(40)]

TABLE = {
    "prose": "All human beings are born free and equal in dignity and rights. They are endowed with reason. " * 12,
    "code": "for index, row in enumerate(rows):\n    if row.total_s > limit_s:\n        found.append((index, row))\n" * 12,
    "JSON": json.dumps(RECORDS, indent=2),
    "compact JSON": json.dumps(RECORDS, separators=(",", ":")),
    "Chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。" * 12,
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。" * 12,
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا. " * 12,
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। लड़के पढ़ते हैं। " * 12,
    "Hindi with composed letters": "लड़के पढ़ते हैं ".replace("ड़", "\u095c").replace("ढ़", "\u095d") * 40,
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ" * 12,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🎉🇨🇭" * 30,
    "base64": base64.b64encode(DRAW.randbytes(3_000)).decode(),
    "random Unicode": "".join(
        chr(DRAW.choice((DRAW.randrange(0x20, 0xD800), DRAW.randrange(0xE000, 0x110000)))) for _ in range(800)
    ),
    "what composing makes longer": "\U0001d160\U0001d161\u0344\ufb2c\u0958" * 60,
    "spaces": " " * 3_000,
    "line ends and tabs": "\n\t\r\n \t\n" * 300,
    "nothing": "",
    "one letter": "x",
}
VOCABULARIES = {"bytes": 0, "small": 600}
"""Merges: with none every byte is a token."""


@cache
def vocabulary(name: str) -> Tokenizer:
    return made(VOCABULARIES[name])


def pool() -> Pool:
    made_pool = Pool(PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),), growth=True), 1.0, {})
    made_pool.replicas["p/0"].capacity = Capacity("p/0", "fake", "1", "a", 1_000_000, 4_000_000, 1, None, ("E1",))
    made_pool.learn_capacity()
    return made_pool


POOL = pool()


def parsed(route: Any, **fields: Any) -> Parsed:
    found = route.parse(json.dumps({"model": "m", "max_tokens": 10, **fields}).encode(), Limits(1_000_000))
    assert isinstance(found, Parsed), found
    return found


def request(asked: Parsed) -> Request:
    return Request(
        id="r",
        key=RequestKey("acme", "k"),
        key_given=False,
        fingerprint="",
        client="c",
        service_class="interactive",
        model="m",
        pool="p",
        prompt_bytes=asked.prompt_bytes,
        prompt_tokens=asked.prompt_tokens,
        output_tokens_max=asked.output_tokens_max,
        samples=asked.samples,
        stream=True,
        prefix=(),
        session=None,
        retry_count=0,
        arrived_s=0.0,
        start_by_s=float("inf"),
        finish_by_s=60.0,
        prompt_kind=asked.prompt_kind,
    )


def sized(asked: Parsed, estimator: Estimator | None = None) -> Work:
    return (estimator or Estimator()).work(request(asked), POOL, NOBODY)


def rendered(tokenizer: Tokenizer, *messages: tuple[str, str], system: str = "") -> int:
    """Tokens of a chat as a widely used template writes it: a mark to begin, four to each message, four to the answer."""
    total = 1 + (4 + tokens(tokenizer, system + "\n\n") if system else 0)
    for role, text in messages:
        total += 4 + 1 + tokens(tokenizer, text)
        assert role
    return total + 4


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("merges", VOCABULARIES)
def test_C1_a_chats_bound_is_never_under(name: str, merges: str) -> None:
    print(f"random Unicode and base64: seed {SEED}")
    asked = parsed(chat, messages=[{"role": "user", "content": TABLE[name]}])
    assert sized(asked).prefill_tokens >= rendered(vocabulary(merges), ("user", TABLE[name]))


@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name]])
@pytest.mark.parametrize("merges", VOCABULARIES)
def test_C1_a_completions_bound_is_never_under_for_one_prompt_or_several(name: str, merges: str) -> None:
    counted = 1 + tokens(vocabulary(merges), TABLE[name])
    assert sized(parsed(completions, prompt=TABLE[name])).prefill_tokens >= counted
    assert sized(parsed(completions, prompt=[TABLE[name], "x"])).prefill_tokens >= counted + 2
    assert sized(parsed(completions, prompt=TABLE[name], n=3)).prefill_tokens >= 3 * counted


@pytest.mark.parametrize("merges", VOCABULARIES)
def test_C1_many_short_messages_are_not_under(merges: str) -> None:
    messages = [{"role": role, "content": "ok"} for role in ("user", "assistant") * 100]
    counted = rendered(vocabulary(merges), *[(message["role"], "ok") for message in messages])
    assert sized(parsed(chat, messages=messages)).prefill_tokens >= counted


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": f"look_up_{number}", "description": "Look it up.", "parameters": PARAMETERS}}
    for number in range(12)
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("merges", VOCABULARIES)
def test_C1_tools_count_as_prompt_however_a_template_writes_them(merges: str, indent: int | None, separators: Any) -> None:
    """As one line or, as many a template has it, with each key on a line of its own; fields left out are written as null."""
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    asked = chat.parse(json.dumps(body, separators=separators).encode(), Limits(1_000_000))
    assert isinstance(asked, Parsed)
    written = [{**tool, "function": {**tool["function"], "strict": None}} for tool in TOOLS]  # type: ignore[dict-item]
    counted = rendered(vocabulary(merges), ("user", "hi")) + tokens(vocabulary(merges), json.dumps(written, indent=indent))
    assert sized(asked).prefill_tokens >= counted


@pytest.mark.parametrize("name", ["prose", "code", "Chinese", "Arabic", "base64", "compact JSON"])
def test_C1_once_an_engine_has_told_it_is_close_and_still_not_under(name: str) -> None:
    estimator, text = Estimator(), TABLE[name]
    draw = random.Random(SEED)
    for _ in range(30):
        start = draw.randrange(len(text) // 2)
        piece = (text[start:] + text)[: 2_100 + draw.randrange(900)]
        asked = parsed(chat, messages=[{"role": "user", "content": piece}])
        work, counted = sized(asked, estimator), rendered(vocabulary("small"), ("user", piece))
        assert work.prefill_tokens >= counted
        estimator.observe(request(asked), Usage(counted, 0, 5, 0.1, "stop", True), work, 0.95)
    assert work.basis == "learnt"
    assert work.prefill_tokens <= 1.15 * counted + 32


def test_C1_four_characters_a_token_would_be_under_twelve_times_and_more() -> None:
    """The negative control: what many a gateway goes by."""
    text = TABLE["random Unicode"]
    assert tokens(vocabulary("bytes"), text) > 12 * (len(text) / 4)

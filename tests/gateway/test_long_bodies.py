"""A long body's fields are the very bytes that came, though its long strings are not walked through for them."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from headworks.gateway.dialects import chat, long_bodies
from headworks.gateway.dialects.base import Limits, Parsed

DECODE = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
TEXT = "the quick brown fox " * 300


class Counting:
    """A decoder that tells how much it was given."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def __call__(self, body: bytes) -> dict[str, msgspec.Raw]:
        self.bytes.append(len(body))
        return DECODE(body)


def held(body: bytes) -> list[int]:
    """Holds it to the decoder's own word. Returns what of it the decoder was given."""
    decode = Counting()
    found = {name: bytes(raw) for name, raw in long_bodies.fields(decode, body).items()}
    assert found == {name: bytes(raw) for name, raw in DECODE(body).items()}
    assert list(found) == list(DECODE(body))
    return decode.bytes


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_long_text_is_taken_out_and_comes_back() -> None:
    body = compact({"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 5, "seed": 0})
    assert held(body) == [len(body) - len(TEXT)]
    parsed = chat.parse(body, Limits())
    assert isinstance(parsed, Parsed)
    assert parsed.build(7, None) == body.replace(b',"max_tokens":5', b"")[:-1] + b',"max_tokens":7}'


@pytest.mark.parametrize(
    "content",
    [
        TEXT + "\\",
        TEXT + '\\"',
        '\\\\"' + TEXT + '"\\\\',
        "é" * 3_000,
        '","model":"other","x":"' + TEXT,
        "\n".join(["a line"] * 1_000),
    ],
)
def test_what_a_text_holds_does_not_end_it(content: str) -> None:
    body = compact(
        {"model": "m", "messages": [{"role": "system", "content": content}, {"role": "user", "content": TEXT}], "n": 1}
    )
    assert held(body)[-1] < 2_000


def test_a_body_with_white_space_or_a_field_twice_is_decoded_as_it_is() -> None:
    spaced = json.dumps({"model": "m", "prompt": TEXT, "n": 1}).encode()
    assert held(spaced) == [len(spaced) - len(TEXT), len(spaced)]
    twice = b'{"model":"m","prompt":"%b","prompt":"%b"}' % (TEXT.encode(), TEXT.encode())
    assert held(twice)[-1] == len(twice)


def test_a_body_of_many_quotes_or_a_short_one_is_decoded_at_once() -> None:
    many = compact({"model": "m", "prompt": ["a word"] * 2_000})
    short = compact({"model": "m", "prompt": "a" * 4_000})
    assert held(many) == [len(many)]
    assert held(short) == [len(short)]


VALUES = some.recursive(
    some.text(max_size=40) | some.integers() | some.none() | some.sampled_from([TEXT, TEXT + '\\"', "\\" * 999, '"' * 700]),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=9), inner, max_size=4),
    max_leaves=9,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(some.dictionaries(some.text("abc_", min_size=1, max_size=600), VALUES, max_size=6), some.booleans(), some.booleans())
def test_any_body_gives_the_bytes_that_came(value: dict[str, object], ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    held(json.dumps({**value, "z": TEXT}, ensure_ascii=ascii_only, separators=separators).encode())

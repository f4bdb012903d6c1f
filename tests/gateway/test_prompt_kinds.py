"""What a prompt is made of, as far as that decides its tokens a byte, and how its bytes are counted (C1)."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.fields import LENGTHENED


def asked(body: dict[str, Any], route: Any = chat) -> Parsed:
    parsed = route.parse(json.dumps(body).encode(), Limits(4_096))
    assert isinstance(parsed, Parsed), parsed
    return parsed


def talk(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def prompted(prompt: object) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt}


WORDS = "It was the best of times, it was the worst of times. "


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (WORDS * 100, "text"),
        ("def f(x):\n    return [y * y for y in x if y > 0]\n\n" * 100, "text"),
        (json.dumps([{"id": number, "name": f"n{number}"} for number in range(200)], indent=1), "text"),
        (json.dumps([{"id": number, "name": f"n{number}"} for number in range(200)], separators=(",", ":")), "dense"),
        ("q83vEjRWeJCrze8" * 200, "dense"),
        ("q83vEjRWeJCrze8" * 100, "text"),
        ("Élève à l'école où l'été s'achève. " * 50, "text"),
        ("人人生而自由，在尊严和权利上一律平等。" * 10, "wide"),
        ("مرحبا بالعالم كيف حالك اليوم " * 10, "wide"),
        ("सभी मनुष्य जन्म से स्वतंत्र हैं " * 10, "wide"),
    ],
)
def test_C1_the_kind_of_a_prompt_is_what_decides_its_tokens_a_byte(text: str, kind: str) -> None:
    assert asked(talk(messages=[{"role": "user", "content": text}])).prompt_kind == kind
    assert asked(prompted(text), completions).prompt_kind == kind
    if kind != "dense":
        assert asked(talk(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}])).prompt_kind == kind


def test_C1_a_prompt_of_tools_is_one_of_its_own_kind() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    assert asked(talk(tools=tools)).prompt_kind == "tools"
    assert asked(talk(tools=tools, messages=[{"role": "user", "content": WORDS * 10}])).prompt_kind == "text"


def test_C1_what_composing_makes_longer_counts_as_that() -> None:
    """U+1D160 is four bytes, and twelve composed (NFC); U+0958 three and six."""
    assert asked(prompted("\U0001d160" * 10), completions).prompt_bytes == 10 * 12
    for text in ("\u0958\u0959", "\U0001d160\u0344\ufb2c", "\ufacf\u2adc"):
        composed = unicodedata.normalize("NFC", text)
        assert len(composed.encode()) > len(text.encode())
        assert asked(prompted(text), completions).prompt_bytes >= len(composed.encode())


def test_C1_every_character_that_composing_makes_longer_is_known() -> None:
    longer = [
        chr(point)
        for point in range(0x80, 0x110000)
        if not 0xD800 <= point < 0xE000 and len(unicodedata.normalize("NFC", chr(point)).encode()) > len(chr(point).encode())
    ]
    assert len(longer) >= 92
    assert [hex(ord(one)) for one in longer if LENGTHENED.match(one) is None] == []

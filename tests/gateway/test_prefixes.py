"""Names of what a prompt begins with: equal beginnings, equal names (D4)."""

from __future__ import annotations

import json

from headworks.core.policy import PoolPolicy, ReplicaPolicy
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.prefixes import BLOCK_BYTES, prefix_of

TWO = PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"), ReplicaPolicy("p/1")))
ONE = PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),))


def asked(*texts: str, model: str = "m") -> Parsed:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    found = chat.parse(json.dumps({"model": model, "messages": messages}).encode(), Limits())
    assert isinstance(found, Parsed)
    return found


def test_D4_a_conversation_that_goes_on_begins_with_the_names_it_had() -> None:
    turns = ("a" * 3_000, "b" * 3_000, "c" * 3_000, "d" * 3_000, "e" * 3_000)
    first, later = prefix_of(asked(*turns[:3]), TWO), prefix_of(asked(*turns), TWO)
    assert (len(first), len(later)) == (4, 7)
    assert later[:4] == first
    other = prefix_of(asked("z" * 3_000, *turns[1:]), TWO)
    assert not set(other) & set(later), "a name holds all that stands before it"


def test_D4_another_model_has_other_names_and_one_replica_needs_none() -> None:
    assert not set(prefix_of(asked("a" * 9_000), TWO)) & set(prefix_of(asked("a" * 9_000, model="n"), TWO))
    assert prefix_of(asked("a" * 9_000), ONE) == ()


def test_D4_what_is_shorter_than_a_block_has_no_name() -> None:
    assert prefix_of(asked("a" * 100), TWO) == ()
    found = completions.parse(json.dumps({"model": "m", "prompt": "a" * (2 * BLOCK_BYTES)}).encode(), Limits())
    assert isinstance(found, Parsed)
    assert len(prefix_of(found, TWO)) == 2

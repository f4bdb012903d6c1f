"""No forbidden name reaches an engine, on any route: nested at a random depth, escaped or not (H3).

A body is drawn that is good, and a forbidden name is put into one of its objects, bare or inside others, at times with its
letters as escapes. Either it is refused, or what would be sent has no such field. Names that an author chose (properties of a
schema, the input of a tool) are no fields. Inside a schema only names that steer elsewhere are forbidden, at every depth.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.fields import PROXIED_NAMES, REFUSED, SCHEMA_NAME_MAPS
from headworks.gateway.dialects.table import DIALECTS

LIMITS = Limits(context_tokens=4_096)
NAMES = sorted({*REFUSED, "image_url", "url", "server_url", "logits_processors"})
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "when": {"type": "object", "properties": {"day": {"type": "integer"}}}},
    "anyOf": [{"required": ["city"]}, {"items": {"enum": ["a"]}}],
}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
TALK: list[Any] = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": TALK,
        "tools": [CHAT_TOOL],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {
        "prompt": "x",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "42"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    },
    "/v1/messages": {
        "max_tokens": 100,
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"city": {"a": [{}]}}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}]}],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "f"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/v1/embeddings": {"input": ["x"]},
    "/tokenize": {"messages": TALK, "tools": [CHAT_TOOL]},
    "/detokenize": {"tokens": [1]},
}
BODIES["/v1/messages/count_tokens"] = {k: v for k, v in BODIES["/v1/messages"].items() if k != "max_tokens"}
SCHEMAS = frozenset({"parameters", "schema", "input_schema"})


def objects(node: Any) -> list[dict[str, Any]]:
    """Every object of a body, itself included."""
    found = [node] if isinstance(node, dict) else []
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        found += objects(child)
    return found


def fields(node: Any, schemas: bool, named: bool = False) -> set[str]:
    """All names that are fields, of schemas or not; `named`: the keys of this object are its author's."""
    if isinstance(node, list):
        return set().union(*(fields(child, schemas) for child in node))
    if not isinstance(node, dict):
        return set()
    found = set() if named else set(node)
    for name, child in node.items():
        if name == "input" and not named and isinstance(child, dict):
            continue  # a tool's input becomes text, whole
        if schemas or name not in SCHEMAS:
            found |= fields(child, schemas, not named and name in SCHEMA_NAME_MAPS)
    return found


def escaped(name: str, which: list[bool]) -> str:
    return "".join(f"\\u{ord(letter):04X}" if hidden else letter for letter, hidden in zip(name, which * 20, strict=False))


@pytest.mark.parametrize("path", sorted(DIALECTS))
@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    place=st.integers(min_value=0, max_value=10_000),
    wrapping=st.lists(st.sampled_from(["anyOf", "items", "x", "content"]), max_size=12),
    which=st.lists(st.booleans(), min_size=1, max_size=8),
    value=st.sampled_from(["http://elsewhere", 1, True, {}, ["x"], {"host": "elsewhere"}]),
)
@example(name="host", place=0, wrapping=[], which=[True], value="http://elsewhere")
def test_H3_no_forbidden_name_reaches_an_engine(
    path: str, name: str, place: int, wrapping: list[str], which: list[bool], value: Any
) -> None:
    body: dict[str, Any] = json.loads(json.dumps({"model": "m", **BODIES[path]}))
    there = objects(body)
    planted: Any = {"PLANTED": value}
    for word in wrapping:
        planted = [planted] if word == "anyOf" else {word: planted}
    target = there[place % len(there)]
    if wrapping:
        target["items" if place % 2 else "anyOf"] = planted
    else:
        target["PLANTED"] = value
    written = json.dumps(body).replace('"PLANTED"', f'"{escaped(name, which)}"')
    parsed = DIALECTS[path].parse(written.encode(), LIMITS)
    if isinstance(parsed, Parsed):
        sent = json.loads(parsed.build(9, None))
        assert not fields(sent, schemas=False) & set(REFUSED), written
        assert not fields(sent, schemas=True) & PROXIED_NAMES, written


@pytest.mark.parametrize("path", sorted(DIALECTS))
def test_H3_the_bodies_that_names_are_planted_in_are_good(path: str) -> None:
    parsed = DIALECTS[path].parse(json.dumps({"model": "m", **BODIES[path]}).encode(), LIMITS)
    assert isinstance(parsed, Parsed), parsed

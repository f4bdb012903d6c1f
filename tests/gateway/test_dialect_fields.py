"""Every field of every route, row by row: what passes as it came, what is ours, what is dropped, what is refused (H3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import LABELS, NOT_SENT, WRITTEN_BY_US, Limits, Parsed
from headworks.gateway.dialects.fields import REFUSED, Fault

LIMITS = Limits(context_tokens=4_096)
MESSAGES = [{"role": "user", "content": "hello"}]
NEEDED: dict[Any, dict[str, Any]] = {
    chat: {"model": "m", "messages": MESSAGES},
    completions: {"model": "m", "prompt": "hello"},
}
FUNCTION = {"type": "function", "function": {"name": "f"}}

PASSED: dict[str, list[Any]] = {
    "ignore_eos": [True, False],
    "n": [1, 128],
    "truncate_prompt_tokens": [1, 4_000],
    "temperature": [0, 0.7, 2, 100],
    "top_p": [0, 1],
    "top_k": [-1, 0, 50],
    "min_p": [0.0, 1.0],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2.0, 2.0],
    "repetition_penalty": [0.1, 1.2],
    "seed": [-(2**63), 0, 2**63 - 1],
    "stop": ["x", ["x"] * 16],
    "stop_token_ids": [[0], [2**31 - 1] * 16],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "logit_bias": [{"50256": -100, "0": 100.0}, {}],
    "prompt_logprobs": [0, 5],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}},
    ],
}
PASSED_IN_CHAT: dict[str, list[Any]] = {
    "tools": [[FUNCTION], [FUNCTION] * 512],
    "tool_choice": ["none", "auto", "required", FUNCTION],
    "parallel_tool_calls": [False],
    "logprobs": [True],
    "top_logprobs": [0, 20],
    "reasoning_effort": ["low", "high"],
    "thinking_token_budget": [1],
    "include_reasoning": [True],
    "add_generation_prompt": [False],
    "continue_final_message": [True],
}
PASSED_IN_COMPLETIONS: dict[str, list[Any]] = {"echo": [True], "logprobs": [0, 20], "add_special_tokens": [False]}
ROUTES = [
    pytest.param(chat, PASSED | PASSED_IN_CHAT, id="chat"),
    pytest.param(completions, PASSED | PASSED_IN_COMPLETIONS, id="completions"),
]


def parsed(route: Any, **fields: Any) -> Parsed | Fault:
    return route.parse(json.dumps(NEEDED[route] | fields).encode(), LIMITS)  # type: ignore[no-any-return]


def refused(route: Any, **fields: Any) -> Fault:
    fault = parsed(route, **fields)
    assert isinstance(fault, Fault), fields
    return fault


def sent(route: Any, **fields: Any) -> Any:
    asked = parsed(route, **fields)
    assert isinstance(asked, Parsed), asked
    return json.loads(asked.build(9, None))


@pytest.mark.parametrize(("route", "passed"), ROUTES)
def test_H3_every_field_of_a_route_has_a_row_here(route: Any, passed: dict[str, Any]) -> None:
    fields = set(route.ROUTE.decoder.type.__struct_fields__)
    assert fields - WRITTEN_BY_US - NOT_SENT - LABELS == {*NEEDED[route], *passed}
    assert not fields & set(REFUSED) - {"use_beam_search"}, "what is refused by name stands in no list"


@pytest.mark.parametrize(("route", "passed"), ROUTES)
def test_H3_what_passes_passes_as_it_came(route: Any, passed: dict[str, list[Any]]) -> None:
    for name, values in passed.items():
        for value in values:
            assert sent(route, **{name: value}) == NEEDED[route] | {name: value, "max_tokens": 9}, name


@pytest.mark.parametrize("route", [chat, completions])
def test_H3_labels_and_what_engines_ignore_are_dropped(route: Any) -> None:
    labels: dict[str, Any] = {
        "user": "u",
        "store": True,
        "metadata": {"host": "a label, sent nowhere"},
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "modalities": ["text"],
    }
    assert labels.keys() == LABELS - {"prompt_cache_retention", "max_tool_calls", "inference_geo"}, "those of other routes"
    accepted = labels if route is chat else {"user": "u"}
    assert sent(route, **accepted, best_of=1, use_beam_search=False) == NEEDED[route] | {"max_tokens": 9}


@pytest.mark.parametrize("route", [chat, completions])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_H3_what_engines_know_and_clients_may_not_is_refused_and_says_why(name: str, route: Any) -> None:
    fault = refused(route, **{name: True})
    assert (fault.reason, fault.param) == ("field_not_allowed", name)
    assert fault.subject == f"{name} ({REFUSED[name]})"


NOTED = [
    *(
        "request_id",
        "priority",
        "cache_salt",
        "session_id",
        "kv_transfer_params",
        "ec_transfer_params",
        "vllm_xargs",
        "mm_payload",
    ),
    *("media_io_kwargs", "mm_processor_kwargs", "chat_template", "chat_template_kwargs", "documents", "stream_interval", "rid"),
    *("api_base", "base_url", "host", "callback_url", "user_config"),
]


def test_H3_the_list_of_refused_fields_has_all_that_were_ever_seen_misused() -> None:
    assert set(NOTED) <= set(REFUSED)


def test_H3_a_key_that_may_not_be_one_is_refused_by_the_name_of_its_field() -> None:
    fault = refused(chat, logit_bias={"host": 1})
    assert (fault.reason, fault.param) == ("invalid_request", "logit_bias")
    assert fault.subject == "logit_bias: one of its keys: Expected `str` matching regex '^[0-9]{1,10}\\\\Z'."
    assert refused(chat, metadata={"x" * 513: "y"}).param == "metadata"


def tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}


def form(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


REMOTE = ["http://10.0.0.1/x", "file:///etc/passwd", "//x", "other.json", "", " #/a", None, 5, ["#"], {"a": 1}]


@pytest.mark.parametrize("word", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("target", REMOTE, ids=repr)
@pytest.mark.parametrize("depth", [0, 1, 9])
def test_H3_a_schema_points_into_itself_only(word: str, target: Any, depth: int) -> None:
    schema: Any = {word: target}
    for level in range(depth):
        schema = {"items": schema} if level % 2 else {"properties": {"a": schema}}
    for fields in (tool(schema), form(schema)):
        fault = refused(chat, **fields)
        assert fault.reason == "invalid_request"
        assert fault.subject.endswith(f"{word} may only point into the schema itself, with #.")
    body = json.dumps(NEEDED[chat] | tool(schema)).replace("$", "\\u0024").encode()
    assert isinstance(chat.parse(body, LIMITS), Fault), "an escape hides no reference"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#a"}}, "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://x/y"},
        {"properties": {"$ref": {"type": "string"}, "host": {"type": "string"}}},
    ],
)
def test_H3_what_points_into_the_schema_or_is_a_propertys_name_passes(schema: Any) -> None:
    assert sent(chat, **tool(schema))["tools"][0]["function"]["parameters"] == schema
    assert sent(completions, **form(schema))["response_format"]["json_schema"]["schema"] == schema

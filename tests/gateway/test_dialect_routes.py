"""What the routes beside chat accept, what it is priced at, and the body it becomes (E1, C1, H3, K22, K27)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialect_bodies import LIMITS, NEEDED, TALK, asked, refused, sent

from headworks.gateway.dialects import embeddings, messages, responses, tokenize
from headworks.gateway.dialects.base import LABELS, NOT_SENT, WRITTEN_BY_US, Parsed, Route
from headworks.gateway.dialects.fields import REFUSED, Fault
from headworks.gateway.dialects.table import DIALECTS

ROUTES: dict[str, Route[Any]] = {
    route.path: route
    for route in (responses.ROUTE, messages.ROUTE, messages.COUNT, embeddings.ROUTE, tokenize.ROUTE, tokenize.BACK)
}
ALWAYS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"max_output_tokens": 9, "store": False},
    "/v1/messages": {"max_tokens": 9},
}
"""What we write ourselves into every body of a route."""

SCHEMA = {"type": "object", "properties": {"host": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
ITEMS: list[Any] = [
    {"role": "developer", "content": "be kind"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": None},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
    {"type": "function_call_output", "call_id": "c", "output": "42"},
]
BLOCKS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "redacted_thinking", "data": "AAAA"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"host": "a", "deep": {"base_url": [1]}}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42", "is_error": False}]},
]
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
PROMPTED: dict[str, list[Any]] = {
    "system": ["be kind", [{"type": "text", "text": "be kind"}]],
    "messages": [BLOCKS],
    "tools": [[TOOL], [{**TOOL, "type": "custom", "strict": True}]],
    "tool_choice": [{"type": "auto", "disable_parallel_tool_use": True}, {"type": "tool", "name": "f"}],
    "output_config": [{"effort": "low"}, {"format": {"type": "json_schema", "schema": SCHEMA}}],
    "cache_control": [{"type": "ephemeral"}],
}
PASSED: dict[str, dict[str, list[Any]]] = {
    "/v1/responses": {
        "input": ["x", ITEMS],
        "instructions": ["be kind"],
        "tools": [[FUNCTION], [FUNCTION] * 512],
        "tool_choice": ["auto", "none", "required", {"type": "function", "name": "f"}],
        "parallel_tool_calls": [False],
        "text": [{"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}, "verbosity": "low"}],
        "reasoning": [{"effort": "high", "summary": "auto"}],
        "include_reasoning": [False],
        "include": [["reasoning.encrypted_content", "message.output_text.logprobs"]],
        "top_logprobs": [0, 20],
        "truncation": ["auto", "disabled"],
        "temperature": [0, 2],
        "top_p": [0, 1],
        "top_k": [-1, 40],
        "min_p": [0.5],
        "presence_penalty": [-2],
        "frequency_penalty": [2],
        "repetition_penalty": [1.1],
        "seed": [-(2**63)],
        "stop": ["x", ["x"] * 16],
        "stop_token_ids": [[1]],
        "ignore_eos": [True],
        "include_stop_str_in_output": [True],
        "skip_special_tokens": [False],
        "logit_bias": [{"1": -100}],
    },
    "/v1/messages": PROMPTED | {"stop_sequences": [["x"] * 16], "temperature": [0, 1], "top_k": [5], "top_p": [0.5]},
    "/v1/messages/count_tokens": PROMPTED,
    "/v1/embeddings": {
        "input": ["x", ["x", "y"], [1, 2], [[1], [2, 3]]],
        "dimensions": [1, 4_096],
        "encoding_format": ["float", "base64"],
        "truncate_prompt_tokens": [8],
        "truncation_side": ["left", "right"],
        "add_special_tokens": [False],
    },
    "/tokenize": {
        "messages": [],
        "tools": [],
        "add_special_tokens": [True],
        "add_generation_prompt": [False],
        "continue_final_message": [True],
        "return_token_strs": [True],
    },
    "/detokenize": {"tokens": [[], [0, 2**31 - 1]]},
}
LABELLED: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "user": "u",
        "store": True,
        "metadata": {"host": "sent nowhere"},
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "max_tool_calls": 3,
        "background": False,
    },
    "/v1/messages": {"metadata": {"user_id": "u"}, "service_tier": "auto", "inference_geo": "eu"},
    "/v1/embeddings": {"user": "u"},
}
on_routes = pytest.mark.parametrize("path", ROUTES)


# the fields, row by row


@on_routes
def test_H3_every_field_of_a_route_has_a_row_here(path: str) -> None:
    fields = set(ROUTES[path].decoder.type.__struct_fields__)
    rows = {*NEEDED[path], *PASSED[path]} - WRITTEN_BY_US
    assert fields - WRITTEN_BY_US - NOT_SENT - LABELS == rows
    assert fields & (LABELS | NOT_SENT) == LABELLED.get(path, {}).keys()
    assert not fields & set(REFUSED) - {"background"}, "what is refused by name stands in no list"


@on_routes
def test_H3_what_passes_passes_as_it_came(path: str) -> None:
    for name, values in PASSED[path].items():
        for value in values:
            assert sent(path, **{name: value}) == NEEDED[path] | {name: value} | ALWAYS.get(path, {}), name


@pytest.mark.parametrize("path", LABELLED)
def test_H3_labels_for_a_vendors_service_are_accepted_and_dropped(path: str) -> None:
    assert sent(path, **LABELLED[path]) == NEEDED[path] | ALWAYS.get(path, {})


@on_routes
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_H3_what_engines_know_and_clients_may_not_is_refused_and_says_why(name: str, path: str) -> None:
    fault = refused(path, **{name: True})
    assert (fault.reason, fault.param, fault.subject) == ("field_not_allowed", name, f"{name} ({REFUSED[name]})")


@on_routes
def test_H3_a_field_given_twice_is_refused(path: str) -> None:
    body = json.dumps(NEEDED[path]).encode()
    fault = DIALECTS[path].parse(body[:-1] + b',"model":"other"}', LIMITS)
    assert isinstance(fault, Fault) and fault.subject == "model is given twice."


@on_routes
def test_A6_a_fingerprint_knows_its_route(path: str) -> None:
    prints = {asked(one).fingerprint() for one in ROUTES}
    assert len(prints) == len(ROUTES)


# what it costs


def test_C1_responses_count_everything_that_becomes_the_prompt() -> None:
    bare = asked("/v1/responses").prompt_bytes
    assert bare == len("hello") + 8
    assert asked("/v1/responses", instructions="be brief").prompt_bytes == bare + 8 + 8
    items = asked("/v1/responses", input=ITEMS).prompt_bytes
    texts = ["be kind", "hi", "yes", "t", "c", "f", "{}", "c", "42"]
    assert items == 8 + 8 * len(ITEMS) + sum(map(len, texts))
    written = len(json.dumps([FUNCTION], indent=4))
    assert asked("/v1/responses", tools=[FUNCTION]).prompt_bytes > bare + written
    form = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}
    assert asked("/v1/responses", text=form).prompt_bytes == bare + len(json.dumps(SCHEMA))


def test_C1_messages_count_a_tools_input_as_the_text_it_becomes() -> None:
    bare = asked("/v1/messages").prompt_bytes
    assert bare == len("hello") + 8 + 8
    assert asked("/v1/messages", system=[{"type": "text", "text": "abc"}]).prompt_bytes == bare + 3
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"word": "é"}}
    talk = {**NEEDED["/v1/messages"], "messages": [*TALK, {"role": "assistant", "content": [call]}]}
    found = messages.parse(json.dumps(talk, ensure_ascii=False).encode(), LIMITS)
    assert isinstance(found, Parsed)
    assert found.prompt_bytes == bare + 8 + len("t1") + len("f") + len('{"word": "\\u00e9"}')
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]}],
    }
    assert asked("/v1/messages", messages=[*TALK, result]).prompt_bytes == bare + 8 + 8 + 2 + 2


def test_C1_tools_of_both_dialects_are_never_sized_below_the_chat_they_become() -> None:
    """An engine turns them into chat's form, with fields that were left out as null, before its template writes them."""
    tools = [{"name": f"tool_{index}", "description": "d" * index, "input_schema": SCHEMA} for index in range(20)]
    flat = [{"type": "function", "name": one["name"], "description": one["description"], "parameters": SCHEMA} for one in tools]
    chat = [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one["description"],
                "parameters": one["input_schema"],
                "strict": None,
                "defer_loading": None,
            },
        }
        for one in tools
    ]
    written = len(json.dumps(chat, indent=4))
    for found in (asked("/v1/messages", tools=tools), asked("/v1/responses", tools=flat)):
        assert written < found.prompt_bytes < 2 * written


def test_C1_messages_of_a_tokenizer_are_those_that_are_sized() -> None:
    for path in ("/v1/messages", "/v1/responses", "/v1/embeddings"):
        fields = {"messages": BLOCKS} if path == "/v1/messages" else {"input": ITEMS} if path == "/v1/responses" else {}
        found = asked(path, **fields)
        texts_of = DIALECTS[path].texts
        assert texts_of is not None
        texts, marks = texts_of(found)
        assert sum(len(text.encode()) for text in texts) + marks == found.prompt_bytes, path


@pytest.mark.parametrize(
    ("given", "samples", "size_bytes", "tokens"),
    [
        ("four", 1, 4, None),
        (["four", "eleven byte"], 2, 8, None),
        ([1, 2, 3], 1, 3, 3),
        ([[1, 2, 3], [4]], 2, 2, 2),
        ("中文", 1, 6, None),
    ],
)
def test_K27_embeddings_are_charged_by_what_is_read_and_write_nothing(
    given: object, samples: int, size_bytes: int, tokens: int | None
) -> None:
    found = asked("/v1/embeddings", input=given)
    assert (found.samples, found.prompt_bytes, found.prompt_tokens) == (samples, size_bytes, tokens)
    assert (found.output_tokens_max, found.stream, found.assembles) == (0, False, False)


def test_K27_embeddings_honour_truncation_and_are_bounded_in_number() -> None:
    assert asked("/v1/embeddings", input=[1] * 100, truncate_prompt_tokens=10).prompt_tokens == 10
    assert asked("/v1/embeddings", input="x" * 100, truncate_prompt_tokens=10).prompt_tokens == 10
    assert refused("/v1/embeddings", input=["x"] * 17).subject == "17 inputs were given; 16 are allowed in one request."


@pytest.mark.parametrize("given", [[], [[]], ["a", 1], [1, "a"], [1, [2]], [[1], "a"], [-1], [True], {"a": 1}, None, 5])
def test_H3_inputs_are_text_or_ids(given: object) -> None:
    assert refused("/v1/embeddings", input=given).reason == "invalid_request"


def test_C1_each_dialects_own_limit_is_the_one_that_counts() -> None:
    assert asked("/v1/responses").output_tokens_max is None
    assert asked("/v1/responses", max_output_tokens=70).output_tokens_max == 70
    assert asked("/v1/responses", max_output_tokens=10_000).output_tokens_max == 4_096
    assert asked("/v1/responses", max_output_tokens=70, ignore_eos=True).output_tokens_min == 70
    assert asked("/v1/messages", max_tokens=10_000).output_tokens_max == 4_096
    assert refused("/v1/messages", max_tokens=None).param == "max_tokens"
    assert refused("/v1/messages", max_tokens=0).param == "max_tokens"
    assert refused("/v1/responses", max_tokens=5).param == "max_tokens"


def test_E5_thinking_fits_whatever_limit_is_sent() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2_000}
    found = asked("/v1/messages", max_tokens=3_000, thinking=thinking)
    assert json.loads(found.build(3_000, None))["thinking"] == thinking
    assert json.loads(found.build(1_500, None))["thinking"] == {"type": "enabled", "budget_tokens": 1_499}
    assert "thinking" not in json.loads(found.build(64, None))
    assert refused("/v1/messages", max_tokens=2_000, thinking=thinking).param == "thinking.budget_tokens"
    assert sent("/v1/messages", thinking={"type": "disabled"})["thinking"] == {"type": "disabled"}
    assert sent("/v1/messages/count_tokens", thinking=thinking)["thinking"] == thinking


def test_E2_streams_are_asked_for_in_each_dialects_way() -> None:
    assert sent("/v1/responses", stream=True, stream_options={"include_obfuscation": False}) == {
        **NEEDED["/v1/responses"],
        **ALWAYS["/v1/responses"],
        "stream": True,
    }
    assert sent("/v1/messages", stream=True)["stream"] is True
    assert refused("/v1/responses", stream_options={"include_obfuscation": True}).param == "stream_options"
    assert refused("/v1/embeddings", stream=True).param == "stream"


def test_H3_what_is_only_counted_is_bounded_in_length() -> None:
    for path, fields in (
        ("/tokenize", {"prompt": "x" * 1_000_001}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 1_000_001}]}),
    ):
        assert "1000000 are allowed" in refused(path, **fields).subject
    assert refused("/tokenize", messages=TALK).subject == "Give either prompt or messages."
    body = {"model": "m", "messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]}
    found = DIALECTS["/tokenize"].parse(json.dumps(body).encode(), LIMITS)
    assert isinstance(found, Parsed) and json.loads(found.build(0, None)) == body

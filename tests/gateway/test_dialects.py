"""What may be asked for, what it is priced at, and the body it becomes (H3, C1, K22, K27, reliability section 8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.fields import NESTING_MAX, Fault

LIMITS = Limits(context_tokens=4_096, samples_max=16)
HELLO = [{"role": "user", "content": "hello"}]


def asked(body: object, route: Any = chat) -> Parsed:
    parsed = route.parse(raw(body), LIMITS)
    assert isinstance(parsed, Parsed), parsed
    return parsed


def refused(body: object, route: Any = chat) -> Fault:
    fault = route.parse(raw(body), LIMITS)
    assert isinstance(fault, Fault), fault
    return fault


def raw(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def talk(**fields: object) -> dict[str, object]:
    return {"model": "m", "messages": HELLO, **fields}


def prompted(prompt: object, **fields: object) -> dict[str, object]:
    return {"model": "m", "prompt": prompt, **fields}


# what is sent


def test_E1_body_sent_is_what_came_with_our_limit() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9 \\"n\\""}],"temperature":0.70,"max_tokens":50}'
    assert asked(body).build(40, None) == (
        b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9 \\"n\\""}],"temperature":0.70,"max_tokens":40}'
    )


def test_E2_usage_is_always_asked_of_a_stream() -> None:
    parsed = asked(talk(stream=True))
    sent = json.loads(parsed.build(7, None))
    assert (sent["stream"], sent["stream_options"], sent["max_tokens"]) == (True, {"include_usage": True}, 7)
    assert parsed.stream
    assert not parsed.include_usage_asked


@pytest.mark.parametrize(
    ("options", "wanted", "sent"),
    [
        ({"include_usage": True}, True, {"include_usage": True}),
        ({"include_usage": False}, False, {"include_usage": True}),
        ({"continuous_usage_stats": True}, True, {"include_usage": True, "continuous_usage_stats": True}),
        (None, False, {"include_usage": True}),
    ],
)
def test_K21_usage_is_shown_only_to_who_asked(options: object, wanted: bool, sent: object) -> None:
    parsed = asked(talk(stream=True, stream_options=options))
    assert parsed.include_usage_asked is wanted
    assert json.loads(parsed.build(1, None))["stream_options"] == sent


def test_E1_stream_options_without_a_stream_are_refused() -> None:
    assert refused(talk(stream_options={"include_usage": True})).param == "stream_options"


def test_H3_salt_is_ours() -> None:
    assert json.loads(asked(talk()).build(1, b"\x01\xff"))["cache_salt"] == "01ff"
    assert refused(talk(cache_salt="theirs")).reason == "field_not_allowed"


def test_H3_null_is_the_same_as_nothing() -> None:
    sent = json.loads(asked(talk(temperature=None, ignore_eos=None, max_tokens=None, stream=None)).build(9, None))
    assert sent == {"model": "m", "messages": HELLO, "max_tokens": 9}


def test_H3_labels_for_openai_are_accepted_and_not_sent() -> None:
    labels = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"}
    assert json.loads(asked(talk(**labels)).build(1, None)) == {"model": "m", "messages": HELLO, "max_tokens": 1}


# how much it may cost


@pytest.mark.parametrize(
    ("fields", "limit", "key"),
    [
        ({}, None, "max_tokens"),
        ({"max_tokens": 100}, 100, "max_tokens"),
        ({"max_completion_tokens": 100}, 100, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1_000}, 1_000, "max_completion_tokens"),
        ({"max_tokens": 1_000, "max_completion_tokens": 1}, 1_000, "max_completion_tokens"),
        ({"max_tokens": 10_000}, 4_096, "max_tokens"),
    ],
)
def test_K22_the_larger_limit_counts_and_is_the_only_one_sent(fields: dict[str, object], limit: int | None, key: str) -> None:
    parsed = asked(talk(**fields))
    assert parsed.output_tokens_max == limit
    sent = json.loads(parsed.build(limit or 3, None))
    assert {name: sent[name] for name in sent if name.startswith("max_")} == {key: limit or 3}


def test_E1_completions_without_a_limit_mean_sixteen_tokens() -> None:
    assert asked(prompted("x"), completions).output_tokens_max == 16


@pytest.mark.parametrize(
    ("prompt", "fields", "samples", "size_bytes", "tokens"),
    [
        ("four", {}, 1, 4, None),
        ("four", {"n": 3}, 3, 4, None),
        ("four", {"n": 2, "best_of": 4}, 2, 4, None),
        (["four", "eleven byte"], {"n": 2}, 4, 8, None),
        ([1, 2, 3], {}, 1, 3, 3),
        ([[1, 2, 3], [4]], {"n": 2}, 4, 2, 2),
        ([[1, 2, 3], [4, 5]], {}, 2, 3, 3),
        ([1] * 100, {"truncate_prompt_tokens": 10}, 1, 10, 10),
        ("x" * 400, {"truncate_prompt_tokens": 100}, 1, 400, 100),
        ("x" * 100, {"truncate_prompt_tokens": 100}, 1, 100, 100),
        ("x" * 99, {"truncate_prompt_tokens": 100}, 1, 99, None),
        (["x" * 150, "y"], {"truncate_prompt_tokens": 100}, 2, 76, None),
        ("中文", {}, 1, 6, None),
    ],
)
def test_K27_prompts_are_charged_by_what_they_cost(
    prompt: object, fields: dict[str, object], samples: int, size_bytes: int, tokens: int | None
) -> None:
    parsed = asked(prompted(prompt, **fields), completions)
    assert (parsed.samples, parsed.prompt_bytes, parsed.prompt_tokens) == (samples, size_bytes, tokens)


def test_K27_best_of_is_not_sent() -> None:
    assert "best_of" not in json.loads(asked(prompted("x", n=1, best_of=4), completions).build(1, None))


@pytest.mark.parametrize(
    "fields",
    [{"n": 17}, {"n": 2, "best_of": 1}, {"n": 0}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"n": 10**30}],
)
def test_H3_samples_are_a_whole_number_in_range(fields: dict[str, object]) -> None:
    assert refused(talk(**fields)).reason == "invalid_request"


def test_H3_samples_of_several_prompts_are_bounded_together() -> None:
    assert refused(prompted(["a", "b"], n=9), completions).subject == "n × prompts is 18; 16 are allowed."


def test_C1_prompt_counts_text_tools_and_schema() -> None:
    assert asked(talk()).prompt_bytes == 5 + 8
    parts = [{"role": "user", "content": [{"type": "text", "text": "héé"}, {"type": "text", "text": "ab"}], "name": "jo"}]
    assert asked({"model": "m", "messages": parts}).prompt_bytes == 5 + 2 + 2 + 8
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    assert asked(talk(tools=tools)).prompt_bytes == 5 + 8 + len(json.dumps(tools, indent=4)) + 64
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert asked(talk(response_format=form)).prompt_bytes == 5 + 8 + len(json.dumps(schema))


def test_C1_history_counts_with_its_calls() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    assert asked({"model": "m", "messages": history}).prompt_bytes == 8 + 2 + 1 + 2 + 8 + 2


def test_C1_ignoring_the_end_means_using_all() -> None:
    assert asked(talk(max_tokens=50, ignore_eos=True)).output_tokens_min == 50
    assert asked(talk(max_tokens=50, min_tokens=20)).output_tokens_min == 20
    assert asked(talk(max_tokens=50)).output_tokens_min == 0
    assert refused(talk(max_tokens=50, min_tokens=51)).param == "min_tokens"


def test_C1_the_least_is_never_sent_above_the_limit() -> None:
    assert json.loads(asked(talk(min_tokens=50)).build(20, None))["min_tokens"] == 20


# what may not be said

FORBIDDEN = [
    *("request_id", "priority", "cache_salt", "session_id", "kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
    *("mm_payload", "media_io_kwargs", "mm_processor_kwargs", "chat_template", "chat_template_kwargs", "documents"),
    *("stream_interval", "rid", "api_base", "base_url", "host", "callback_url", "user_config", "prompt_embeds"),
    *("guided_grammar", "made_up", ""),
]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_H3_fields_outside_the_list_are_refused_by_name(name: str) -> None:
    for fault in (refused(talk(**{name: 1})), refused(prompted("x", **{name: 1}), completions)):
        assert (fault.reason, fault.param) == ("field_not_allowed", name)


def test_H3_an_escape_hides_no_field() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"\\u0070riority":1}'
    assert (refused(body).reason, refused(body).param) == ("field_not_allowed", "priority")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "api_base": "http://h"}, "messages[0].api_base"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "host": 1}]}, "messages[0].content[0].host"),
    ],
)
def test_H3_messages_have_known_fields_only(message: object, param: str) -> None:
    fault = refused({"model": "m", "messages": [message]})
    assert (fault.reason, fault.param) == ("field_not_allowed", param)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_C1_content_that_is_not_text_is_refused(kind: str) -> None:
    given = {"image_url": {"url": "data:image/png;base64,AAAA"}, "input_audio": {"data": "AAAA", "format": "wav"}}
    part = {"type": kind, kind: given.get(kind, {"url": "x"})}
    fault = refused({"model": "m", "messages": [{"role": "user", "content": [part]}]})
    assert fault.reason == "invalid_request"
    assert fault.subject.startswith("messages[0].content[0]")
    assert "only text is accepted here" in fault.subject


def test_K27_beam_search_is_refused() -> None:
    assert refused(talk(use_beam_search=True)).param == "use_beam_search"
    assert asked(talk(use_beam_search=False)).samples == 1


def nested(name: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {name: "http://elsewhere"}
    for level in range(depth):
        schema = {"items": schema} if level % 2 else {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize("name", ["api_base", "base_url", "host", "callback_url", "user_config"])
@pytest.mark.parametrize("depth", [0, 1, 2, 7, 20])
def test_H3_names_that_steer_elsewhere_are_refused_at_any_depth(name: str, depth: int) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested(name, depth)}}]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": nested(name, depth)}}
    assert refused(talk(tools=tools)).reason == "field_not_allowed"
    assert refused(talk(response_format=form)).reason == "field_not_allowed"
    escaped = raw(talk(tools=tools)).replace(name.encode(), b"\\u00%02x" % ord(name[0]) + name[1:].encode())
    assert refused(escaped).reason == "field_not_allowed"


def test_H3_a_tool_may_take_a_parameter_called_host() -> None:
    parameters = {"type": "object", "properties": {"host": {"type": "string"}}, "required": ["host"]}
    tools = [{"type": "function", "function": {"name": "connect", "parameters": parameters}}]
    assert asked(talk(tools=tools)).samples == 1
    inside = {"type": "object", "properties": {"x": {"host": "elsewhere"}}}
    tools[0]["function"]["parameters"] = inside  # type: ignore[index]
    assert refused(talk(tools=tools)).reason == "field_not_allowed"


def test_H3_schemas_are_not_nested_without_end() -> None:
    def tools(levels: int) -> bytes:
        schema = b'{"a":' * levels + b"1" + b"}" * levels
        return raw(talk(tools=[{"type": "function", "function": {"name": "f", "parameters": 0}}])).replace(
            b'"parameters": 0', b'"parameters":' + schema
        )

    assert asked(tools(NESTING_MAX)).samples == 1
    assert "nested more than 64 levels" in refused(tools(NESTING_MAX + 1)).subject
    assert refused(tools(100_000)).reason == "invalid_request"


# numbers and text as weapons

HEAD = b'{"model":"m","messages":[{"role":"user","content":"x"}],'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"x"',
        b"{",
        HEAD + b'"temperature":NaN}',
        HEAD + b'"temperature":Infinity}',
        HEAD + b'"temperature":1e400}',
        HEAD + b'"max_tokens":' + b"9" * 5_000 + b"}",
        HEAD + b'"max_tokens":2147483648}',
        HEAD + b'"max_tokens":0}',
        HEAD + b'"max_tokens":-1}',
        HEAD + b'"max_tokens":true}',
        HEAD + b'"max_tokens":"5"}',
        HEAD + b'"max_tokens":3.0}',
        HEAD + b'"max_completion_tokens":0}',
        HEAD + b'"top_logprobs":21}',
        HEAD + b'"prompt_logprobs":6}',
        HEAD + b'"thinking_token_budget":0}',
        HEAD + b'"stream":1}',
        HEAD + b'"stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}',
        b"\xef\xbb\xbf" + HEAD + b'"n":1}',
        (HEAD + b'"n":1}').decode().encode("utf-16"),
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\udc00 x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"user":"\xc3\x28"}',
        b'{"model":"m","messages":' + b"[" * 1_500 + b"}",
        b'{"model":"m","messages":' + b"[" * 1_000_000 + b"}",
        b'{"model":"m","messages":' + b'{"a":' * 100_000 + b"}",
        HEAD + b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":"\xff"}}}]}',
        HEAD + b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1e999}}}]}',
        HEAD + b'"n":1} {"n":2}',
        b'{"model":"","messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m"}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":[{"content":"x"}]}',
        b'{"model":"m","messages":[{"role":"root","content":"x"}]}',
    ],
    ids=lambda body: repr(bytes(body[-30:])),
)
def test_H3_bodies_that_make_no_sense_are_400(body: bytes) -> None:
    assert refused(body).reason == "invalid_request"


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [1, [2]], [[1], "a"], [-1], [2**31], [True], {"a": 1}, None, 5])
def test_H3_prompts_are_text_or_ids(prompt: object) -> None:
    assert refused(prompted(prompt), completions).reason == "invalid_request"


REPEATED = [
    HEAD + b'"max_tokens":1,"max_tokens":100000}',
    HEAD + b'"max_tokens": 1, "max_tokens": 100000}',
    HEAD + b'"max_tokens":1,\n "max\\u005ftokens":100000}',
    HEAD + b'"n":1,"n":8}',
    HEAD + b'"top_p":1,"n":1, "n":8}',  # as long as the same fields once, with the usual spaces
    b'{"model":"m","model":"big","messages":[{"role":"user","content":"x"}]}',
    HEAD + b'"messages":[{"role":"user","content":"' + b"y" * 100 + b'"}]}',
    b'{"messages":[{"role":"user","content":"' + b"y" * 100 + b'"}],' + HEAD[1:] + b'"n":1}',
]


@pytest.mark.parametrize("body", REPEATED, ids=range(len(REPEATED)))
def test_H3_a_field_given_twice_is_refused(body: bytes) -> None:
    assert "given twice" in refused(body).subject


def test_H3_a_large_field_given_twice_is_refused_without_work() -> None:
    large = b'"messages":[{"role":"user","content":"' + b"y" * 100_000 + b'"}]'
    assert "names a large field twice" in refused(b'{"model":"m",' + large + b"," + large + b"}").subject


@pytest.mark.parametrize("indent", [None, 0, 2, 8])
def test_H3_white_space_is_no_second_field(indent: int | None) -> None:
    text = 'say "max_tokens": 1, "max_tokens": 2, "n": [1, 2, 3]'
    body = json.dumps(talk(max_tokens=5, messages=[{"role": "user", "content": text * 4}]), indent=indent)
    assert asked(body.encode() + b"\n").output_tokens_max == 5


def test_H3_many_keys_are_refused_in_little_time() -> None:
    body = b"{" + b",".join(b'"k%d":1' % index for index in range(100_000)) + b"}"
    assert refused(body).reason == "field_not_allowed"


def test_H3_a_message_repeats_only_little_of_what_came() -> None:
    fault = refused(talk(**{"x" * 10_000: 1}))
    assert len(fault.subject) == 200


# the fingerprint


def test_A6_fingerprint_is_of_what_matters_however_written() -> None:
    first = asked(talk(temperature=0.7, max_tokens=5)).fingerprint()
    same = b'{ "max_tokens":5, "messages":[{"content":"hell\\u006f","role":"user"}],\n"temperature":0.70,"model":"m"}'
    assert asked(same).fingerprint() == first
    assert asked(talk(temperature=0.7, max_tokens=5, user="other", metadata={"a": "b"}, n=None)).fingerprint() == first
    assert asked(talk(temperature=0.7, max_tokens=6)).fingerprint() != first
    assert asked(talk(temperature=0.7, max_tokens=5, stream=True)).fingerprint() != first


def test_A6_fingerprint_knows_the_route() -> None:
    assert asked(prompted("x", max_tokens=16), completions).fingerprint() != asked(talk(max_tokens=16)).fingerprint()


def test_C1_tools_that_would_be_written_very_long_are_bounded_and_not_written() -> None:
    """Many numbers in a deep list: each may stand on a line of its own, indented. Nobody writes that down to count it."""
    deep: object = [0] * 200_000
    for _ in range(50):
        deep = [deep]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "default": deep}}}]
    written = 5 + 8 + 64 + len(json.dumps(tools, indent=4))
    found = asked(talk(tools=tools)).prompt_bytes
    assert written < found <= written + 200_060 * (4 * 20), "the most it can be, twelve levels deeper than it is"

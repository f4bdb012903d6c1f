"""What may not be said on the routes beside chat (H3, C1)."""

from __future__ import annotations

from typing import Any

import pytest
from dialect_bodies import LIMITS, asked, refused

from headworks.gateway.dialects import messages
from headworks.gateway.dialects.base import Parsed
from headworks.gateway.dialects.fields import Fault
from headworks.gateway.dialects.table import DIALECTS


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/responses", {"input": [{"role": "user", "content": "x", "api_base": "h"}]}, "input[0].api_base"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "host": 1}]}]},
            "input[0].content[0].host",
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x", "host": 1}]}, "messages[0].host"),
        ("/v1/messages", {"system": [{"type": "text", "text": "x", "base_url": "h"}]}, "system[0].base_url"),
    ],
)
def test_H3_items_and_blocks_have_known_fields_only(path: str, fields: dict[str, Any], param: str) -> None:
    fault = refused(path, **fields)
    assert (fault.reason, fault.param) == ("field_not_allowed", param)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://h"}]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
        (
            "/v1/messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}],
                    }
                ]
            },
        ),
    ],
)
def test_C1_what_is_not_text_is_refused_in_every_dialect(path: str, fields: dict[str, Any]) -> None:
    fault = refused(path, **fields)
    assert fault.reason == "invalid_request"
    assert "only text is accepted here" in fault.subject


def test_C1_a_data_uri_in_a_text_is_sized_as_the_dense_text_it_is() -> None:
    uri = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 200
    found = asked("/v1/messages", messages=[{"role": "user", "content": uri}])
    assert (found.prompt_bytes, found.prompt_kind) == (len(uri) + 16, "dense")


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "s", "server_url": "http://h"},
        {"type": "code_interpreter", "container": "auto"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ],
)
def test_H3_tools_that_a_service_would_run_are_refused(tool: dict[str, Any]) -> None:
    assert refused("/v1/responses", tools=[tool]).reason in ("invalid_request", "field_not_allowed")
    assert refused("/v1/messages", tools=[tool]).reason in ("invalid_request", "field_not_allowed")


def test_H3_a_tools_input_is_an_object_of_bounded_depth() -> None:
    def talk(value: str) -> Parsed | Fault:
        block = b'{"type":"tool_use","id":"t","name":"f","input":%b}' % value.encode()
        return messages.parse(b'{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[%b]}]}' % block, LIMITS)

    assert isinstance(talk('{"host":"x"}'), Parsed), "its names are its author's"
    for wrong in ("1", "[]", '{"a":' * 70 + "1" + "}" * 70, '{"a":' * 100_000 + "1" + "}" * 100_000):
        fault = talk(wrong)
        assert isinstance(fault, Fault) and fault.reason == "invalid_request"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/responses", b'"input":"x","text":{"format":{"type":"json_schema","name":"f","schema":{"title":"\xff"}}}'),
        ("/v1/messages", b'"max_tokens":5,"output_config":{"format":{"type":"json_schema","schema":{"title":"\xff"}}}'),
        ("/v1/messages/count_tokens", b'"output_config":{"format":{"type":"json_schema","schema":{"title":"\xff"}}}'),
    ],
)
def test_H3_a_schema_that_is_no_utf_8_is_refused(path: str, field: bytes) -> None:
    talk = b"" if path == "/v1/responses" else b'"messages":[{"role":"user","content":"x"}],'
    fault = DIALECTS[path].parse(b'{"model":"m",' + talk + field + b"}", LIMITS)
    assert isinstance(fault, Fault) and "Invalid UTF-8" in fault.subject


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/v1/chat/completions", b'"messages":[{"role":"user","content":"x"}]'),
        ("/v1/responses", b'"input":"x"'),
    ],
)
def test_H3_a_field_given_twice_is_refused_where_its_value_is_a_key_elsewhere(path: str, needed: bytes) -> None:
    """What is taken out of the body to count its fields may then be taken out of the wrong place."""
    long = b'"' + b"y" * 80 + b'"'
    body = b'{"model":"m","user":"x","metadata":{%b:"v"},"user":%b,%b}' % (long, long, needed)
    fault = DIALECTS[path].parse(body, LIMITS)
    assert isinstance(fault, Fault) and fault.subject == "The body names a field twice."


@pytest.mark.parametrize(
    ("path", "fields", "subject"),
    [
        ("/v1/messages", {"messages": [{"role": "my secret", "content": "x"}]}, "messages[0].role: Invalid value."),
        ("/v1/messages", {"messages": [{"role": "a - at `$.host`", "content": "x"}]}, "messages[0].role: Invalid value."),
        ("/v1/responses", {"input": [{"role": "my secret" * 9_000, "content": "x"}]}, "input[0].role: Invalid value."),
        ("/v1/responses", {"tool_choice": {"type": "my secret", "name": "f"}}, None),
    ],
)
def test_I37_a_value_that_is_refused_is_not_said_again(path: str, fields: dict[str, Any], subject: str | None) -> None:
    """It may be a piece of a prompt: an error ends in logs of proxies and clients."""
    fault = refused(path, **fields)
    assert "secret" not in fault.subject
    assert subject is None or fault.subject == subject

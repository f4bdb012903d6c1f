"""What must never reach an engine, whatever is sent: the field policy on the whole gateway (H3, reliability 8 and 10)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from app_scene import call, chat, completion, fake_engine, get, run, scene

import headworks
from headworks.gateway.dialects.fields import REFUSED

SOURCE = Path(headworks.__file__).parent
MESSAGE = {"role": "user", "content": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}
HOST_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{"api_base": "http://10.0.0.1"}]}}}
REMOTE_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://10.0.0.1/schema.json"}}}

EVERYWHERE: list[tuple[dict[str, Any], str]] = [
    *(({name: True}, "field_not_allowed") for name in REFUSED),
    ({"nobody_knows_it": 1}, "field_not_allowed"),
    ({"n": 1_000_000}, "invalid_request"),
    ({"n": 2, "best_of": 1}, "invalid_request"),
    ({"best_of": 1_000_000}, "invalid_request"),
    ({"max_tokens": 2**31}, "invalid_request"),
    ({"min_tokens": -1}, "invalid_request"),
    ({"prompt_logprobs": 10_000}, "invalid_request"),
    ({"stop": ["x"] * 17}, "invalid_request"),
    ({"temperature": -0.1}, "invalid_request"),
    ({"temperature": 1e300}, "invalid_request"),
    ({"top_p": 1.01}, "invalid_request"),
    ({"min_p": -1}, "invalid_request"),
    ({"top_k": -2}, "invalid_request"),
    ({"presence_penalty": 2.1}, "invalid_request"),
    ({"frequency_penalty": -2.1}, "invalid_request"),
    ({"repetition_penalty": -1}, "invalid_request"),
    ({"seed": 2**63}, "invalid_request"),
    ({"logit_bias": {"host": 1}}, "invalid_request"),
    ({"logit_bias": {"5\n": 1}}, "invalid_request"),
    ({"logit_bias": {"5": 101}}, "invalid_request"),
    ({"logit_bias": {str(number): 1 for number in range(1_025)}}, "invalid_request"),
    ({"response_format": {"type": "structural_tag"}}, "invalid_request"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"base_url": 1}}}},
        "field_not_allowed",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "file:///x"}}}},
        "invalid_request",
    ),
]
IN_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": 0}, "invalid_request"),
    ({"top_logprobs": 21}, "invalid_request"),
    ({"thinking_token_budget": -5}, "invalid_request"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "invalid_request"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "invalid_request"),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]}, "invalid_request"),
    ({"messages": [MESSAGE] * 4_097}, "invalid_request"),
    ({"tools": [HOST_TOOL]}, "field_not_allowed"),
    ({"tools": [REMOTE_TOOL]}, "invalid_request"),
    ({"tools": [{"type": "web_search"}]}, "invalid_request"),
    ({"functions": []}, "field_not_allowed"),
    ({"audio": {"voice": "x"}}, "field_not_allowed"),
]
IN_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [[1, -5]]}, "invalid_request"),
    ({"prompt": ["x"] * 129}, "invalid_request"),
    ({"logprobs": 21}, "invalid_request"),
    ({"suffix": "x"}, "field_not_allowed"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("ask", "rows"),
    [(chat, [*EVERYWHERE, *IN_CHAT]), (completion, [*EVERYWHERE, *IN_COMPLETIONS])],
    ids=["chat", "completions"],
)
def test_H3_no_refused_field_reaches_an_engine_on_any_route(ask: Any, rows: Any, stream: bool) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            before = engine.requests
            for fields, code in rows:
                answer = await s.ask(ask(stream=stream, **fields))
                assert (answer.status, answer.code) == (400, code), fields
                assert answer.fields["x-should-retry"] == "false"
                assert answer.json()["error"]["param"], fields
            assert engine.requests == before
            assert (await s.ask(ask(stream=stream))).status == 200

    run("uvloop", steps())


def test_H3_a_refused_field_that_engines_know_is_told_why() -> None:
    async def steps() -> None:
        async with scene() as s:
            answer = await s.ask(chat(priority=1))
            assert answer.json()["error"]["message"] == (
                "The field priority (the header Headworks-Class says how urgent it is) may not be set through this gateway."
            )
            assert answer.json()["error"]["param"] == "priority"

    run("uvloop", steps())


TEMPLATES = ["{{7*7}}", "{value}", "{0.__class__}", "${7*7}", "%(x)s", "<%= 7*7 %>"]


@pytest.mark.parametrize("text", TEMPLATES)
def test_H3_no_text_of_a_client_is_a_template(text: str) -> None:
    """Not in what it asks for, and not in what it is told about it (LiteLLM, CVE-2026-37004)."""

    async def steps() -> None:
        async with scene() as s:
            told = (await s.ask(chat(model=text))).json()["error"]["message"]
            assert told == f"The model {text} does not exist here or is not allowed for this key."
            told = (await s.ask(chat(**{text: 1}))).json()["error"]
            assert (told["message"], told["param"]) == (f"The field {text} may not be set through this gateway.", text)
            told = (await s.ask(chat(f"Headworks-Class: {text}"))).json()["error"]["message"]
            assert told == f"This key may not use the class {text!r}."

    run("uvloop", steps())


KINDS = ["multipart/form-data; boundary=x", "multipart/form-data; boundary=" + "-" * 20_000, "text/plain", "application/x-yaml"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[:32])
def test_H3_a_body_that_is_not_json_is_refused_by_its_name(kind: str) -> None:
    """Nothing looks for a boundary (LiteLLM, CVE-2024-8984)."""

    async def steps() -> None:
        async with scene() as s:
            payload = chat().replace(b"Content-Type: application/json", f"Content-Type: {kind}".encode())
            assert (await s.ask(payload)).status == 415

    run("uvloop", steps())


def test_H3_what_is_not_known_is_404_before_the_body_whoever_asks() -> None:
    async def steps() -> None:
        async with scene() as s:
            for path in (
                "/",
                "/v1",
                "/v1/files",
                "/v1/audio/transcriptions",
                "/prompts/test",
                "/config/update",
                "/metrics",
                "/livez",
            ):
                client = await s.connect()
                client.send(call(path, body={"x": 1}).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                answer = await client.answer()
                assert (answer.status, answer.code) == (404, "not_found"), path
                client.close()
                assert (await s.ask(get(path))).status == 404

    run("uvloop", steps())


DANGEROUS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "Popen",
    "create_subprocess_exec",
    "create_subprocess_shell",
}


OFF_THE_WAY = {"log_index.py"}
"""Starts this Python on itself with a directory of the configuration, when a log file is full: no request gets there."""


@pytest.mark.parametrize("layer", ["gateway", "engines", "ledgers", "core"])
def test_H3_nothing_on_the_way_of_a_request_starts_a_process_or_runs_text(layer: str) -> None:
    found = []
    for path in sorted(path for path in (SOURCE / layer).rglob("*.py") if path.name not in OFF_THE_WAY):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                if {"subprocess", "pickle", "marshal", "shelve", "jinja2", "ctypes"} & set(names):
                    found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                is_regex = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
                if name in DANGEROUS and not is_regex:
                    found.append(f"{path.name}:{node.lineno}: {name}")
    assert found == []

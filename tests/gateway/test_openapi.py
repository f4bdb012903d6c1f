"""What is said of the routes is what there is (H3): both ports, every path and method, and bodies by their own types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from app_scene import get, run, scene
from key_scene import keyed

from headworks.cli.main import run as command
from headworks.gateway.admit import admit_methods
from headworks.gateway.dialects.table import DIALECTS
from headworks.gateway.openapi import ROUTES, document, encoded
from headworks.gateway.routes import METHODS, methods

DASHBOARD = "/dashboard"


def test_H3_every_route_of_the_admin_port_is_described_and_no_other(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            served: Any = s.app._admin.config.app
            there = {
                (method, route.path)
                for route in served.routes
                if not route.path.startswith(DASHBOARD)
                for method in route.methods
            }
            told = {(method.upper(), path) for path, row in document(public=False)["paths"].items() for method in row}
            assert told == {(method, path) for method, path in there if method != "HEAD"}
            shown = await s.admin("/openapi.json")
            assert (shown.headers["content-type"], shown.json()) == (
                "application/json",
                json.loads(msgspec.json.encode(document())),
            )
            assert encoded() is encoded(), "made once, however often it is asked for"

    run("uvloop", steps())


def test_H3_every_route_of_the_public_port_is_described_and_no_other() -> None:
    told = document(admin=False)["paths"]
    for path, row in told.items():
        there = methods(path.replace("{name}", "x"))
        assert there is not None, path
        assert {method.upper() for method in row} == set(there) - {"HEAD"}, path
    assert METHODS.keys() | {"/admit", "/admit/session"} <= told.keys()
    assert admit_methods("/admit/session/x") == ("DELETE",)
    assert ROUTES.keys() == DIALECTS.keys()


def test_H3_a_schema_has_every_field_of_its_type_with_its_bounds() -> None:
    schemas = document()["components"]["schemas"]
    chat = schemas["chat_fields.ChatFields"]
    assert set(chat["properties"]) == set(ROUTES["/v1/chat/completions"].__struct_encode_fields__)
    assert (chat["required"], chat["additionalProperties"]) == (["model", "messages"], False)
    assert chat["properties"]["n"] == {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 4096}, {"type": "null"}]}
    assert schemas["chat_fields.TextPart"]["required"] == ["type", "text"]
    assert schemas["chat_fields.TextPart"]["properties"]["type"] == {"const": "text"}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        here = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return here.union(*(references(child) for child in node.values()))
    return set().union(*(references(child) for child in node)) if isinstance(node, list) else set()


def test_H3_no_reference_leads_nowhere_and_each_port_has_its_own() -> None:
    told = document()
    assert references(told) <= {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    assert told["paths"].keys() == document(admin=False)["paths"].keys() | document(public=False)["paths"].keys()


def test_F12_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["schema", "--openapi"]) == 0
    assert json.loads(capsys.readouterr().out)["openapi"] == "3.1.0"


def test_H3_the_public_port_does_not_serve_it() -> None:
    async def steps() -> None:
        async with scene() as s:
            assert (await s.ask(get("/openapi.json"))).status == 404

    run("uvloop", steps())

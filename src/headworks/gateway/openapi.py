"""Both ports as OpenAPI 3.1, made of what serves them: the types that bodies are read by, the methods of routes, the reasons.

A test holds that every route there is stands here, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from headworks import __version__
from headworks.core.reasons import REASONS
from headworks.gateway.dialects import chat, completions, embeddings, messages, responses, tokenize
from headworks.gateway.key_desk import Add, Rotate
from headworks.gateway.routes import METHODS

REFERENCE = "#/components/schemas/"
JSON = "application/json"
TEXT = "text/plain"
STREAM = "text/event-stream"
Object = dict[str, Any]

ROUTES: dict[str, Any] = {
    one.path: one.decoder.type
    for one in (
        *(chat.ROUTE, completions.ROUTE, responses.ROUTE, messages.ROUTE, messages.COUNT, embeddings.ROUTE),
        *(tokenize.ROUTE, tokenize.BACK),
    )
}
"""What asks an engine for something → the type of its body."""
EDGE = (400, 401, 403, 404, 405, 408, 411, 413, 415, 417, 429, 431, 503)
"""What the public port answers to any path, before it knows what is asked."""
ADMIN = (400, 401, 403, 404, 409, 413, 415, 429, 503)
REASON = {"reason": {"type": "string", "minLength": 1, "maxLength": 256}}


def _name(kind: Any) -> str:
    """Modules of dialects call different things the same."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def _named(kind: Any) -> str:
    return REFERENCE + _name(kind)


def subject(name: str) -> Object:
    """What is declared of something, and why."""
    return {"type": "object", "properties": {name: REASON["reason"], **REASON}, "required": [name, "reason"]}


WHY: Object = {"type": "object", "properties": REASON, "required": ["reason"]}
READS: dict[str, str] = {
    "/livez": "Whether the process lives.",
    "/readyz": "Whether it takes work, and what keeps it from that.",
    "/metrics": "Metrics, as Prometheus reads them.",
    "/openapi.json": "This document.",
    "/admin/snapshot": "All there is now; ?version=N: a look of before.",
    "/admin/state": "The same, under the name it had before.",
    "/admin/feed": "Looks as they change, as events.",
    "/admin/ledger": "What is held, by scope.",
    "/admin/ledger/audit": "Whether every counter is the sum of its parts.",
    "/admin/explain/{name}": "What became of one request, and why.",
    "/admin/keys": "Stored keys, without the keys.",
    "/admin/replicas": "The engines.",
    "/admin/cost": "What a period cost, and who caused it: ?period=2026-11&by=tenant,model&format=json|csv|html.",
    "/admin/orders": "What operators have ordered.",
}
WRITES: dict[str, tuple[str, Object]] = {
    "/admin/ledger/release": ("Declare that an execution does not run any more.", subject("execution")),
    "/admin/ledger/withdraw": ("Declare that an engine is gone for good.", subject("replica")),
    "/admin/keys": ("Issue a key: it is shown once.", {"$ref": _named(Add)}),
    "/admin/keys/{name}/rotate": ("Issue its successor.", {"$ref": _named(Rotate)}),
    "/admin/keys/{name}/revoke": ("Revoke it.", {"type": "object"}),
    "/admin/replicas/drain": ("Give it nothing new.", subject("replica")),
    "/admin/replicas/resume": ("Give it work again.", subject("replica")),
    "/admin/replicas/withdraw": ("Take it out for good.", subject("replica")),
    "/admin/reload": ("Read the configuration again.", WHY),
    "/admin/log/delete": ("Take a tenant out of the decision log.", subject("tenant")),
    "/admin/tenants/freeze": ("Take nothing new of a tenant.", subject("tenant")),
    "/admin/tenants/thaw": ("Take its requests again.", subject("tenant")),
    "/admin/mode/observe": ("Refuse nobody for now.", WHY),
    "/admin/mode/enforce": ("Refuse again.", WHY),
}
OPEN = frozenset({"/livez", "/readyz", "/metrics", "/openapi.json"})
UNLIKE_ERRORS = frozenset({("/readyz", 503), ("/admin/explain/{name}", 404)})
"""What is answered there has the form of what is answered with 200."""
OTHERWISE = {"/metrics": (TEXT,), "/livez": (TEXT,), "/admin/feed": (STREAM,), "/admin/cost": (JSON, "text/csv", "text/html")}
"""What is answered with something else than JSON."""


def document(*, public: bool = True, admin: bool = True) -> Object:
    """The whole of it, or one port's."""
    paths: Object = {}
    if public:
        paths |= _public_paths()
    if admin:
        paths |= _admin_paths()
    return {
        "openapi": "3.1.0",
        "info": {"title": "headworks", "version": __version__, "description": "Admission control for shared LLM engines."},
        "paths": paths,
        "components": {
            "schemas": {**schemas([*ROUTES.values(), Add, Rotate]), "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def encoded() -> bytes:
    """The whole of it, as it is sent: nobody needs a key to ask, and it takes longer to make than hundreds of requests."""
    return msgspec.json.encode(document())


ERROR: Object = {
    "type": "object",
    "description": "In the shape of the route's API: OpenAI's, Anthropic's (/v1/messages) or that of a response.",
    "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}},
    "required": ["error"],
}


def _public_paths() -> Object:
    paths: Object = {path: {"post": _asks(f"{path}, by an engine.", {"$ref": _named(kind)})} for path, kind in ROUTES.items()}
    any_call = {"oneOf": [{"$ref": _named(ROUTES[path])} for path in ROUTES if "token" not in path]}
    terms = {
        "type": "object",
        "properties": {
            "tokens": {"type": "integer", "minimum": 1, "maximum": 1_000_000_000},
            "deadline_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400},
            "model": {"type": ["string", "null"]},
        },
        "required": ["tokens"],
        "additionalProperties": False,
    }
    paths["/admit"] = {"post": _asks("What would be decided now; nothing runs.", any_call)}
    paths["/admit/session"] = {"post": _asks("Hold a budget for a series of calls.", terms)}
    paths["/admit/session/{name}"] = {"delete": {**_told("Give back what was not spent.", (200, *EDGE)), **_about("name")}}
    paths["/v1/models"] = {"get": _told("The models this key may use.", (200, *EDGE))}
    paths["/v1/headworks/usage"] = {"get": _told("Limits, and what is in use.", (200, *EDGE))}
    paths["/v1/headworks/explain/{name}"] = {"get": {**_told("What became of a request.", (200, *EDGE)), **_about("name")}}
    paths["/v1/headworks/cost"] = {"get": _told("What this month cost.", (200, *EDGE))}
    paths["/v1/headworks/cost/{name}"] = {"get": {**_told("What a period cost.", (200, *EDGE)), **_about("name")}}
    assert METHODS.keys() - {"/v1/models"} == ROUTES.keys(), "a route without a type"
    return paths


def _admin_paths() -> Object:
    paths: Object = {}
    for path, summary in READS.items():
        told = _told(summary, (200, 503) if path in OPEN else (200, *ADMIN), OTHERWISE.get(path, (JSON,)))
        for _, status in [one for one in UNLIKE_ERRORS if one[0] == path]:
            told["responses"][str(status)] = {"description": "Not so, or nothing.", "content": {JSON: {}}}
        paths.setdefault(path, {})["get"] = told | _about(*_names(path)) | ({"security": []} if path in OPEN else {})
    for path, (summary, body) in WRITES.items():
        told = _told(summary, (200, 201, *ADMIN, 501))
        paths.setdefault(path, {})["post"] = told | _about(*_names(path)) | _body(body)
    return paths


def _names(path: str) -> tuple[str, ...]:
    return ("name",) if "{name}" in path else ()


def _about(*names: str) -> Object:
    given = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {"parameters": [{"name": name, **given} for name in names]} if names else {}


def _body(schema: Object) -> Object:
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def _asks(summary: str, body: Object) -> Object:
    """A call: it may stream, and may be refused for every reason there is."""
    statuses = sorted({200, *EDGE, *(reason.status for reason in REASONS.values())})
    return _told(summary, statuses, (JSON, STREAM)) | _body(body)


def _told(summary: str, statuses: Iterable[int], kinds: tuple[str, ...] = (JSON,)) -> Object:
    return {
        "summary": summary,
        "security": [{"key": []}],
        "responses": {str(status): _answer(status, kinds) for status in sorted(set(statuses))},
    }


def _answer(status: int, kinds: tuple[str, ...]) -> Object:
    if status < 300:
        return {"description": "What was asked for.", "content": {kind: {} for kind in kinds}}
    codes = [reason.code for reason in REASONS.values() if reason.status == status]
    said = "Refused: " + ", ".join(codes) if codes else "Refused by the port itself."
    return {"description": said, "content": {JSON: {"schema": {"$ref": REFERENCE + "Error"}}}}


# Types.


def schemas(kinds: Iterable[Any]) -> Object:
    """Every struct that these are made of, by its name."""
    found: Object = {}
    waiting: list[Any] = [inspect.type_info(kind) for kind in kinds]
    while waiting:
        info = waiting.pop()
        name = _name(info.cls)
        if name not in found:
            found[name] = {}  # it may hold itself
            found[name] = _struct(info, waiting)
    return dict(sorted(found.items()))


def _struct(info: inspect.StructType, waiting: list[Any]) -> Object:
    properties = {one.encode_name: _schema(one.type, waiting) for one in info.fields}
    required = [one.encode_name for one in info.fields if one.required]
    if info.tag_field:
        properties = {info.tag_field: {"const": info.tag}, **properties}
        required.insert(0, info.tag_field)
    closed = {"additionalProperties": False} if info.forbid_unknown_fields else {}
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **closed}


BOUNDS: Mapping[str, str] = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
PLAIN: dict[Any, str] = {
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
}


def _schema(info: Any, waiting: list[Any]) -> Object:
    """What msgspec makes of a type, but for what is kept as it came, which may be anything."""
    if type(info) in PLAIN:
        bounds = {there: getattr(info, here, None) for here, there in BOUNDS.items()}
        return {"type": PLAIN[type(info)], **{name: bound for name, bound in bounds.items() if bound is not None}}
    if isinstance(info, inspect.Metadata):
        return _schema(info.type, waiting)
    if isinstance(info, inspect.LiteralType):
        return {"enum": list(info.values)}
    if isinstance(info, inspect.StructType):
        waiting.append(info)
        return {"$ref": _named(info.cls)}
    if isinstance(info, inspect.UnionType):
        return {"anyOf": [_schema(one, waiting) for one in info.types]}
    if isinstance(info, inspect.DictType):
        return {"type": "object", "additionalProperties": _schema(info.value_type, waiting), **_counted(info, "Properties")}
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return {"type": "array", "items": _schema(info.item_type, waiting), **_counted(info, "Items")}
    return {}


def _counted(info: Any, what: str) -> Object:
    bounds = {f"min{what}": info.min_length, f"max{what}": info.max_length}
    return {name: bound for name, bound in bounds.items() if bound is not None}

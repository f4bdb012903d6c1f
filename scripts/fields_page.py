"""docs/fields.md: what a client may send on each route, from the very structs that decode it. Called by `make_docs.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec.inspect as inspect

from headworks.gateway.dialects import base, chat, completions, embeddings, messages, responses, tokenize
from headworks.gateway.dialects.fields import REFERENCES, REFUSED

ROUTES: dict[str, type] = {
    chat.ROUTE.path: chat.ChatFields,
    completions.ROUTE.path: completions.CompletionFields,
    responses.ROUTE.path: responses.ResponseFields,
    messages.ROUTE.path: messages.MessageFields,
    messages.COUNT.path: messages.CountFields,
    embeddings.ROUTE.path: embeddings.EmbeddingFields,
    tokenize.ROUTE.path: tokenize.TokenizeFields,
    tokenize.BACK.path: tokenize.DetokenizeFields,
}
PROMPTS = {
    "messages": "messages of known roles, with text only",
    "prompt": "text, token ids, or a list of either",
    "input": "text, token ids, or a list of either",
}
OWN_PROMPTS = {
    (responses.ROUTE.path, "input"): "text, or items of known kinds, with text only",
    (tokenize.ROUTE.path, "prompt"): "text",
}
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]


def parts(table: Table) -> Sequence[str]:
    """The sections of the page."""
    return (
        "# Fields",
        "What stands in a route's list is decoded by its type and range; everything else is refused by name with 400 "
        "`field_not_allowed`, and a value outside its range with 400 `invalid_request`, before anything is counted. `null` is "
        "the same as leaving a field out. A field that is given twice is refused.",
        *(section for path, fields in ROUTES.items() for section in (f"## POST {path}", table(HEAD, _rows(path, fields)))),
        "## What becomes of a field",
        "*passed*: goes to the engine as the client wrote it. *written by us*: the engine gets the value that was priced, "
        "bounded by the context. *read*: decides or prices something here and does not go on. *dropped*: a label for "
        "a vendor's own service, accepted so that no client need be changed.",
        "## Inside a field",
        "Messages, items, blocks, parts, tools and options have known fields only, at every depth; but for the `input` of a "
        "tool that was called (`/v1/messages`), which its author named and an engine writes down as text. A JSON Schema (a "
        "tool's parameters, the form of an answer) passes as it is, at most 64 levels deep; none of "
        f"{_quoted(sorted(name for name in REFUSED if REFUSED[name].startswith('servers')))} may be a field of it "
        "(a property may be called so), and "
        f"{_quoted(REFERENCES)} may only point into the schema itself. `n` times the number of prompts, "
        f"and the number of an embedding's inputs, is at most {base.Limits().samples_max}.",
        "## Refused with a reason",
        table(["field", "why"], [(f"`{name}`", why) for name, why in REFUSED.items()]),
    )


HEAD = ["field", "value", "what becomes of it"]


def _rows(path: str, fields: type) -> Iterable[Sequence[str]]:
    described = inspect.type_info(fields)
    assert isinstance(described, inspect.StructType)
    for one in described.fields:
        name = f"`{one.name}`" + (" (needed)" if one.required else "")
        yield name, OWN_PROMPTS.get((path, one.name)) or PROMPTS.get(one.name) or _value(one.type), _fate(path, one.name)


def _fate(path: str, name: str) -> str:
    if path == messages.COUNT.path:
        return "passed"
    if name in base.WRITTEN_BY_US:
        return "written by us"
    if name in base.NOT_SENT:
        return "read"
    return "dropped" if name in base.LABELS else "passed"


def _value(kind: Any) -> str:
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_value(one) for one in kind.types if not isinstance(one, inspect.NoneType))
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return f"{'whole number' if isinstance(kind, inspect.IntType) else 'number'}, {_number(kind.ge)} to {_number(kind.le)}"
    if isinstance(kind, inspect.StrType):
        return "a token's id" if kind.pattern else f"text of at most {kind.max_length or 'any'} characters"
    if isinstance(kind, inspect.LiteralType):
        return _quoted(sorted(kind.values))
    if isinstance(kind, inspect.ListType):
        most = "" if kind.max_length is None else f" at most {kind.max_length:,}"
        return f"list of{most}: {_value(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        most = "" if kind.max_length is None else f" of at most {kind.max_length:,} entries"
        return f"object{most}: {_value(kind.key_type)} → {_value(kind.value_type)}"
    return "object with known fields"


def _number(value: float | None) -> str:
    if value is None:
        return "any"
    if abs(value) >= 2**63 - 1:
        return "-2⁶³" if value < 0 else "2⁶³ - 1"
    return "2³¹ - 1" if value == 2**31 - 1 else f"{value:,}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

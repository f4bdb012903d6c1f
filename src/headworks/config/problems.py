"""What is wrong with a file, in sentences: `file:line: path: what was given, what is allowed, what would help`.

pydantic's errors are translated here and nowhere else. A value that is a secret, or stands where one belongs, is never
shown; nor is text that stands where a section or a list belongs, since anything may have slipped there.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import ErrorDetails

from headworks.config import tree
from headworks.config.document import Path
from headworks.config.values import SECRET_KEYS, WRONG

SHOWN_LENGTH_MAX = 60


def spelled(path: Path) -> str:
    """`pools.llama.replicas[0].url`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_printable(step)}" if text else _printable(step)
    return text


def place(error: ErrorDetails, value: Any) -> Path:
    """Where in the file an error of pydantic's stands, without the steps pydantic adds of its own."""
    path: list[str | int] = []
    for step in error["loc"]:
        inside = isinstance(value, dict) and step in value
        if inside or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
        elif error["type"] not in ("missing", "extra_forbidden") or step != error["loc"][-1]:
            break
        path.append(step)
    return tuple(path)


def sentence(error: ErrorDetails, path: Path, is_key: bool) -> str:
    """The text of one of pydantic's errors."""
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"is not a known key; {tree.suggestion(path)}"
    key = tree.find(path)
    about = f" {key.sentence}" if key and key.sentence else ""
    if kind == "missing":
        return f"is missing.{about}"
    if is_key:
        return (
            "is not a name that can be used here; letters, digits, _ . and - are allowed, at most 64, a letter or digit first"
        )
    return f"{_given(error, path)}; {_allowed(error)}.{about}"


def is_about_key(error: ErrorDetails) -> bool:
    """Whether the key of a mapping is wrong rather than its value."""
    return bool(error["loc"]) and error["loc"][-1] == "[key]"


def _given(error: ErrorDetails, path: Path) -> str:
    value = error["input"]
    if SECRET_KEYS.intersection(str(step) for step in path):
        return "what was given is not shown"
    if error["type"] in ("dict_type", "list_type", "model_type", "model_attributes_type") or isinstance(value, (dict, list)):
        return f"{_kind(value)} was given"
    if isinstance(value, str):
        short = value if len(value) <= SHOWN_LENGTH_MAX else value[:SHOWN_LENGTH_MAX] + "…"
        return "text with a user or password was given" if "@" in value else f"the text {_printable(short)!r} was given"
    return f"{_kind(value) if value is None else _plain(value)} was given"


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {dict: "a section", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else "a date or the like")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:SHOWN_LENGTH_MAX]


def _allowed(error: ErrorDetails) -> str:
    """What is allowed. Every kind of error the schema can raise has a row; anything else keeps pydantic's words."""
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == WRONG:
        return str(context["allowed"])
    if kind in ("int_type", "float_type") and isinstance(error["input"], str):
        wanted = "whole number" if kind == "int_type" else "number"
        return f"a {wanted} is allowed, without quotes and written out (YAML reads 1e6 and 5s as text)"
    template = ALLOWED.get(kind)
    if template is None:
        return error["msg"]
    return template.format(**{name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in context.items()})


ALLOWED = {
    "int_type": "a whole number is allowed",
    "float_type": "a number is allowed",
    "finite_number": "a finite number is allowed",
    "bool_type": "true or false is allowed",
    "string_type": "text is allowed; put it in quotes",
    "dict_type": "a section, keys with values, is allowed",
    "model_type": "a section, keys with values, is allowed",
    "model_attributes_type": "a section, keys with values, is allowed",
    "list_type": "a list is allowed: [one, two]",
    "literal_error": "{expected} is allowed",
    "greater_than": "more than {gt} is allowed",
    "greater_than_equal": "at least {ge} is allowed",
    "less_than": "less than {lt} is allowed",
    "less_than_equal": "at most {le} is allowed",
    "too_short": "at least {min_length} of them is needed",
    "too_long": "at most {max_length} of them are allowed",
    "string_too_short": "at least {min_length} character is needed",
    "string_too_long": "at most {max_length} characters are allowed",
    "string_pattern_mismatch": "letters, digits and a few signs are allowed, no spaces",
}


def _printable(text: str) -> str:
    """Control characters would let a file write on the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)

"""Bodies that somebody wrote who wishes us ill, made from a seed: good ones of every route with something done to them.

Some are changed as text (cut, doubled, other codings, bytes that are no character), most as values (a field of another kind,
far too large, nested too deep, or one that a peer's advisory speaks of). Each prompt carries a secret that no output may have.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

CANARY = "canary-7f3c9a51"
TALK = [{"role": "system", "content": f"Be kind, {CANARY}."}, {"role": "user", "content": f"one two {CANARY}"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "description": CANARY}}}
TOOL = {"type": "function", "function": {"name": "f", "description": CANARY, "parameters": SCHEMA}}
SMALL = {"model": "tiny", "max_tokens": 3}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**SMALL, "messages": TALK, "tools": [TOOL], "stop": [CANARY], "user": CANARY, "stream": True},
    "/v1/completions": {**SMALL, "prompt": [f"one {CANARY}", "two"], "n": 1, "temperature": 0.5, "logit_bias": {"5": 1}},
    "/v1/responses": {"model": "tiny", "max_output_tokens": 16, "input": TALK[1:], "instructions": CANARY, "stream": True},
    "/v1/messages": {**SMALL, "messages": TALK[1:], "system": CANARY, "metadata": {"user_id": CANARY}},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": TALK[1:], "system": CANARY},
    "/v1/embeddings": {"model": "tiny", "input": [CANARY, "two"], "encoding_format": "float"},
    "/tokenize": {"model": "tiny", "prompt": CANARY},
    "/detokenize": {"model": "tiny", "tokens": [1, 2, 3]},
    "/admit": {**SMALL, "messages": TALK},
    "/admit/session": {"tokens": 64, "deadline_s": 1, "model": "tiny"},
}
NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**40, 0.1, -0.0, 1e308, 5e-324)
TEXTS = ("", " ", "\0", "\u202e", "\ufeff", "\ud800", "e\u0301" * 99, "{{7*7}}", "../../etc/passwd", "' OR 1=1 --", "%s%n")
ADVISED = ("api_base", "base_url", "host", "user_config", "chat_template", "vllm_xargs", "__proto__", "__class__", "$ref")
BAD_TEXTS = (b"", b" ", b"null", b"[]", b"0", b'"x"', b"{}", b"{", b"}", b"[" * 9_000, b'{"a":' * 9_000, b"\xff\xfe", b"nul")
LITERALS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"0x10",
    b"01",
    b"1.",
    b"+1",
    b"9" * 5_000,
    b"1e-99999",
    b"truE",
    b"/**/1",
)
ESCAPES = (
    rb"\ud800",
    rb"\udc00\ud800",
    rb"\u0000",
    rb"\u12",
    rb"\x41",
    b"\\",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xf5",
    b"\x80",
    b"\n",
)


def value(chance: Random) -> Any:
    """One that hardly fits where it will stand."""
    many = chance.choice((17, 129, 1_025))
    made: Callable[[], Any] = chance.choice(
        (
            lambda: None,
            lambda: True,
            lambda: chance.choice(NUMBERS),
            lambda: chance.choice(TEXTS) + CANARY,
            list,
            dict,
            lambda: [CANARY] * many,
            lambda: [[CANARY]],
            lambda: {CANARY[:6]: {"b": [CANARY]}},
            lambda: {str(number): number for number in range(many)},
            lambda: CANARY * many,
            lambda: nested(chance.choice((9, 65, 200))),
            lambda: {chance.choice(ADVISED): "http://169.254.169.254/"},
        )
    )
    return made()


def nested(depth: int) -> Any:
    inner: Any = CANARY
    for level in range(depth):
        inner = [inner] if level % 2 else {"items": inner}
    return inner


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys, outer ones first."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


def as_value(chance: Random, good: dict[str, Any]) -> bytes:
    """One to three fields of another kind, gone, doubled into a list, or new."""
    body = copy.deepcopy(good)
    for _ in range(chance.randint(1, 3)):
        inside, key = chance.choice(places(body))
        change = chance.randrange(5)
        if change == 0 and key in body and len(body) > 2:
            del body[key]
        elif change == 1 and isinstance(inside, dict):
            inside[chance.choice(ADVISED)] = value(chance)
        elif change == 2:
            inside[key] = [inside[key]] * chance.randint(2, 40) if key in good else value(chance)
        else:
            # What names a model is no secret: who asks for one that is not there is told its name.
            inside[key] = chance.choice((*NUMBERS, *TEXTS)) if key == "model" else value(chance)
    return json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def cut(chance: Random, text: bytes) -> bytes:
    return text[: chance.randrange(len(text))]


def sprinkled(chance: Random, text: bytes) -> bytes:
    """Some bytes are others, or were not there before."""
    changed = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed))
        changed[place : place + chance.randint(0, 2)] = bytes(chance.randrange(256) for _ in range(chance.randint(0, 2)))
    return bytes(changed)


def doubled(chance: Random, text: bytes) -> bytes:
    """A field twice, the whole twice, or something behind the end."""
    again = (text[:-1] + b"," + text[1:], text + text, text + b"\n{}", text + b"\0", text[:-1] + b",}", b",".join([text] * 3))
    return chance.choice(again)


def escaped(chance: Random, text: bytes) -> bytes:
    """Something in a string that is no character, or none that may stand there."""
    at = text.find(CANARY.encode())
    return text[: max(at, 1)] + chance.choice(ESCAPES) + text[max(at, 1) :]


def literal(chance: Random, text: bytes) -> bytes:
    """A value as JSON does not know it, or no machine can hold it."""
    field = chance.choice(text.split(b'": ')[:-1]).rsplit(b'"', 1)[-1]
    return text[:-1] + b', "%b": %b}' % (chance.choice((field, b"top_k", b"seed")), chance.choice(LITERALS))


def recoded(chance: Random, text: bytes) -> bytes:
    """Not UTF-8, or with a mark that it is."""
    return text.decode().encode(chance.choice(("utf-16", "utf-16-be", "utf-32", "utf-7", "utf-8-sig")))


def unrelated(chance: Random, text: bytes) -> bytes:
    return chance.choice((*BAD_TEXTS, text.replace(b'"', b"'"), text.replace(b":", b"="), b"--x\r\n" + text, b"model=tiny&n=1"))


AS_TEXT: tuple[Callable[[Random, bytes], bytes], ...] = (cut, sprinkled, doubled, escaped, literal, recoded, unrelated)


def bodies(seed: int, count: int) -> list[tuple[str, bytes]]:
    """So many of them, no two alike, each with its route. The same seed gives the same."""
    chance = Random(seed)
    routes = list(GOOD)
    made: dict[tuple[str, bytes], None] = {}
    while len(made) < count:
        path = routes[len(made) % len(routes)]
        if chance.random() < 0.6:
            body = as_value(chance, GOOD[path])
        else:
            body = chance.choice(AS_TEXT)(chance, json.dumps(GOOD[path]).encode())
        made[path, body] = None
    return list(made)

"""In which shape an error of ours is written: OpenAI's, or Anthropic's on its routes, so that each client raises its own.

All of them carry the same: a sentence, a type as the vendor names it, our code, the field at fault, and the explanation (design
section 9). Which shape it is stands with the names of a request (`every_answer.Ids`), as it is needed wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

OPENAI = "openai"
RESPONSES = "responses"
"""OpenAI's shape, but for errors inside a stream: there each event has a type."""
ANTHROPIC = "anthropic"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What Anthropic calls an error of a status. Any other is an `api_error`."""


@dataclass(slots=True)
class Error:
    """What is said, in OpenAI's terms."""

    message: str
    type: str
    param: str | None
    code: str


_encode = msgspec.json.Encoder().encode
_words: dict[str, bytes] = {}
"""Types and codes as they are written: there are as many as the tables of them have."""


def written(shape: str, status: int, error: Error, explanation: bytes, request_id: bytes) -> bytes:
    """The body of an error. `explanation` is JSON."""
    if shape != ANTHROPIC:
        return b'{"error":%b,"headworks":%b}' % (_object(error, error.type), explanation)
    named, name = _object(error, _TYPES.get(status, "api_error")), _encode(request_id.decode("latin-1"))
    return b'{"type":"error","error":%b,"request_id":%b,"headworks":%b}' % (named, name, explanation)


def bare(shape: str, status: int, error: Error) -> bytes:
    """The body of an error before anybody knows whose request it is: without a name of it, and what would explain it."""
    if shape != ANTHROPIC:
        return b'{"error":%b}' % _object(error, error.type)
    return b'{"type":"error","error":%b}' % _object(error, _TYPES.get(status, "api_error"))


def _object(error: Error, kind: str) -> bytes:
    param = b"null" if error.param is None else _encode(error.param)
    message, code = _encode(error.message), _word(error.code)
    return b'{"message":%b,"type":%b,"param":%b,"code":%b}' % (message, _word(kind), param, code)


def _word(word: str) -> bytes:
    written_as = _words.get(word)
    if written_as is None:
        written_as = _words[word] = _encode(word)
    return written_as


def error_event(shape: str, body: bytes) -> bytes:
    """The same inside a stream that has begun: one event, after which the stream is broken off."""
    if shape == OPENAI:
        return b"data: %b\n\n" % body
    if shape == RESPONSES:
        said = msgspec.json.decode(body)
        error = said["error"]
        named = {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
        body = _encode(named | {"sequence_number": 0} | said)
    return b"event: error\ndata: %b\n\n" % body

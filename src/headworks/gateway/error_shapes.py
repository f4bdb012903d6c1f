"""In which shape an error of ours is written: OpenAI's, or Anthropic's on its routes, so that each client raises its own.

All of them carry the same: a sentence, a type as the vendor names it, our code, the field at fault, and the explanation (design
section 9). Which shape it is stands with the names of a request (`every_answer.Ids`), as it is needed wherever they are.
"""

from __future__ import annotations

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


class Error(msgspec.Struct):
    """What is said, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str


class _AnthropicBody(msgspec.Struct):
    type: str
    error: Error
    request_id: str
    headworks: msgspec.Raw


_encode = msgspec.json.Encoder().encode


def written(shape: str, status: int, error: Error, explanation: bytes, request_id: bytes) -> bytes:
    """The body of an error. `explanation` is JSON."""
    if shape != ANTHROPIC:
        return b'{"error":%b,"headworks":%b}' % (_encode(error), explanation)
    named = Error(error.message, _TYPES.get(status, "api_error"), error.param, error.code)
    return _encode(_AnthropicBody("error", named, request_id.decode("latin-1"), msgspec.Raw(explanation)))


def bare(shape: str, status: int, error: Error) -> bytes:
    """The body of an error before anybody knows whose request it is: without a name of it, and what would explain it."""
    if shape != ANTHROPIC:
        return _encode({"error": error})
    named = Error(error.message, _TYPES.get(status, "api_error"), error.param, error.code)
    return _encode({"type": "error", "error": named})


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

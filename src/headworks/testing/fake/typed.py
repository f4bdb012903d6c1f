"""The routes of the fake engine whose answers are not chat completions, as vLLM 0.32.0 writes them.

`/v1/responses` and `/v1/messages` turn into a chat and are generated as one; only what is written differs: typed events in a
stream, other names in a whole answer. `/v1/embeddings` is read and generates nothing. `/v1/messages/count_tokens` and
`/detokenize` reach no scheduler and are answered at once.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from headworks.testing.fake.asked import NOT_TEXT, Asked, Refused, decode, prompts_of
from headworks.testing.fake.generation import Choice, Generation
from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake.pages import tokenize
from headworks.testing.fake.tokenizer import word

if TYPE_CHECKING:
    from headworks.testing.fake_engine import FakeEngine

DIMENSIONS = 8


def event(kind: str, content: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **content}))


@dataclass(slots=True, eq=False)
class ResponseGeneration(Generation):
    """One answer of `/v1/responses`. An answer that was aborted says `completed`, as the real one's does."""

    _number: int = 0
    _text: list[str] = field(default_factory=list)

    def _named(self, kind: str, **content: Any) -> bytes:
        self._number += 1
        return event(kind, {"sequence_number": self._number - 1, **content})

    def _answer(self, status: str, output: list[Any], used: bool) -> dict[str, Any]:
        answer: dict[str, Any] = {"id": self.id, "created_at": self.created, "object": "response", "model": self.model}
        answer |= {"status": status, "output": output, "instructions": None, "metadata": None, "error": None}
        answer |= {"incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None}
        answer |= {"parallel_tool_calls": True, "tool_choice": "none", "tools": [], "temperature": 1.0, "top_p": 1.0}
        answer |= {"background": False, "max_output_tokens": self.asked.output_tokens[0], "truncation": "disabled"}
        return answer | {"service_tier": "auto", "usage": self._used() if used else None}

    def _used(self) -> dict[str, Any]:
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": f"msg_{self.request_id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def begin(self) -> None:
        """Two events go out before there is a token."""
        Generation.begin(self)
        if self._head_sent:
            answer = self._answer("in_progress", [], used=False)
            self._events += [self._named("response.created", response=answer)]
            self._events += [self._named("response.in_progress", response=answer)]
            self._send()

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        self._events += [
            self._named("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._named("response.content_part.added", **self._where(), part=self._part("")),
        ]

    def _where(self) -> dict[str, Any]:
        return {"output_index": 0, "content_index": 0, "item_id": f"msg_{self.request_id}"}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _chunk(self, choice: Choice, text: str) -> bytes:
        self._text.append(text)
        return self._named("response.output_text.delta", **self._where(), delta=text, logprobs=[])

    def _finish(self) -> None:
        self._end()
        (choice,) = self.choices.values()
        status = "incomplete" if choice.ended == "length" else "completed"
        text = "".join(self._text if self.asked.stream else choice.text)
        item = self._item("completed", [self._part(text)])
        answer = self._answer(status, [item], used=True)
        if not self.asked.stream:
            self.connection.respond(200, msgspec.json.encode(answer))
            return
        self._events += [
            self._named("response.output_text.done", **self._where(), text=text, logprobs=[]),
            self._named("response.content_part.done", **self._where(), part=self._part(text)),
            self._named("response.output_item.done", output_index=0, item=item),
            self._named("response.completed", response=answer),
        ]
        self._send()
        self.connection.end_stream()

    def failed(self, message: str) -> None:
        """The stream just ends where the real one meets an error that it does not expect."""
        if self.ended or not self.asked.stream:
            Generation.failed(self, message)
            return
        self._end()
        if self._events:
            self._send()
        self.connection.reset()


STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


@dataclass(slots=True, eq=False)
class MessageGeneration(Generation):
    """One answer of `/v1/messages`. An answer that was aborted has no stop reason."""

    def _message(self, used: dict[str, int]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model, "usage": used}

    def _used(self, made: int) -> dict[str, int]:
        return {"input_tokens": len(self.asked.prompts[0]), "output_tokens": made}

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        start = self._message(self._used(0)) | {"stop_reason": None, "stop_sequence": None}
        self._events += [
            event("message_start", {"message": start}),
            event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def _chunk(self, choice: Choice, text: str) -> bytes:
        return event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})

    def _finish(self) -> None:
        self._end()
        (choice,) = self.choices.values()
        reason = STOP_REASONS.get(choice.ended)
        if not self.asked.stream:
            message = self._message(self._used(self.made)) | ({} if reason is None else {"stop_reason": reason})
            message["content"] = [{"type": "text", "text": "".join(choice.text)}]
            self.connection.respond(200, msgspec.json.encode(message))
            return
        self._events += [
            event("content_block_stop", {"index": 0}),
            event(
                "message_delta",
                {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": self._used(self.made)},
            ),
            event("message_stop", {}),
        ]
        self._send()
        self.connection.end_stream()

    def failed(self, message: str) -> None:
        """An event that says so, and no end."""
        if self.ended:
            return
        self._end()
        error = {"error": {"type": "internal_error", "message": message}}
        if not self.asked.stream or not (self._head_sent or self._events):
            self.connection.respond(500, msgspec.json.encode({"type": "error", **error}))
            return
        self._events.append(event("error", error))
        self._send()
        self.connection.end_stream()


@dataclass(slots=True, eq=False)
class EmbeddingGeneration(Generation):
    """One answer of `/v1/embeddings`, when all its inputs have been read."""

    def _finish(self) -> None:
        self._end()
        read = sum(len(prompt) for prompt in self.asked.prompts)
        rows = [
            {"index": choice.index, "object": "embedding", "embedding": self._vector(choice)}
            for choice in self.choices.values()
        ]
        usage = {"prompt_tokens": read, "total_tokens": read, "completion_tokens": 0, "prompt_tokens_details": None}
        body = {"id": self.id, "object": "list", "created": self.created, "model": self.model, "data": rows, "usage": usage}
        self.connection.respond(200, msgspec.json.encode(body))

    def _vector(self, choice: Choice) -> list[float] | str:
        numbers = [(choice.seed >> bit & 15) / 16 for bit in range(self.asked.dimensions)]
        if not self.asked.as_base64:
            return numbers
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


# What is asked for, as the chat it becomes.


def chat_of_response(fields: dict[str, Any]) -> dict[str, Any]:
    """What `/v1/responses` makes of a body."""
    if fields.get("previous_response_id") or fields.get("background"):
        raise Refused(400, "nothing is stored here", param="previous_response_id")
    messages: list[dict[str, Any]] = []
    if fields.get("instructions"):
        messages.append({"role": "system", "content": fields["instructions"]})
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in items or []:
        content = item.get("content", item.get("output", item.get("arguments", "")))
        messages.append({"role": item.get("role", "tool"), "content": content or ""})
    limit = fields.get("max_output_tokens")
    kept = {name: fields[name] for name in ("model", "stream", "tools", "ignore_eos", "cache_salt") if name in fields}
    return kept | {"messages": messages} | ({} if limit is None else {"max_completion_tokens": limit})


def chat_of_message(fields: dict[str, Any]) -> dict[str, Any]:
    """What `/v1/messages` makes of a body."""
    thinking = fields.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= fields.get("max_tokens", 0):
        raise Refused(400, "thinking.budget_tokens must be less than max_tokens", "Bad Request")
    messages: list[dict[str, Any]] = []
    if fields.get("system"):
        messages.append({"role": "system", "content": fields["system"]})
    for message in fields.get("messages") or []:
        content = message.get("content")
        if not isinstance(content, str):
            content = [
                block if block.get("type") in NOT_TEXT else {"type": "text", "text": _block_text(block)}
                for block in content or []
            ]
        messages.append({"role": message.get("role"), "content": content})
    kept = {name: fields[name] for name in ("model", "stream", "tools", "max_tokens", "cache_salt") if name in fields}
    return kept | {"messages": messages}


def _block_text(block: dict[str, Any]) -> str:
    content = block.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return block.get("text") or block.get("thinking") or content or msgspec.json.encode(block.get("input") or "").decode()


def embeddings_asked(fields: dict[str, Any], model: str, context_tokens: int) -> Asked:
    """Inputs that are read, and nothing more."""
    if fields.get("model", model) != model:
        raise Refused(404, f"The model `{fields['model']}` does not exist.", "NotFoundError", "model")
    prompts = prompts_of(False, {"prompt": fields.get("input"), **{k: v for k, v in fields.items() if k != "input"}})
    for prompt in prompts:
        if len(prompt) > context_tokens:
            raise Refused(400, f"This model's maximum context length is {context_tokens} tokens.", param="input_tokens")
    return Asked(
        chat=False,
        prompts=prompts,
        samples=1,
        output_tokens=[0] * len(prompts),
        stream=False,
        include_usage=False,
        continuous_usage=False,
        ignore_eos=False,
        output_tokens_min=0,
        salt=str(fields.get("cache_salt") or ""),
        dimensions=int(fields.get("dimensions") or DIMENSIONS),
        as_base64=fields.get("encoding_format") == "base64",
    )


# The routes.


def respond(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    fields = _fields(request)
    engine.generate(lambda: engine.parse(True, chat_of_response(fields)), ResponseGeneration, fields, request, connection)


def message(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    try:
        fields = _fields(request)
        engine.generate(lambda: engine.parse(True, chat_of_message(fields)), MessageGeneration, fields, request, connection)
    except Refused as refused:
        raise anthropic(refused) from None


def embed(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    fields, settings = _fields(request), engine.settings
    asked = embeddings_asked(fields, settings.model_name, settings.context_tokens)
    engine.generate(lambda: asked, EmbeddingGeneration, fields, request, connection)


def _fields(request: HttpRequest) -> dict[str, Any]:
    return decode(request.body, request.headers.get("content-type", ""))


def count_tokens(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    """What a message's prompt comes to."""
    try:
        fields = _fields(request)
        tokens = len(prompts_of(True, chat_of_message(fields))[0])
    except Refused as refused:
        raise anthropic(refused) from None
    answer = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    connection.respond(200, msgspec.json.encode(answer))


def detokenize(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    """Some word for each id: what it was made of is not kept."""
    ids = _fields(request).get("tokens") or []
    connection.respond(200, msgspec.json.encode({"prompt": "".join(word(token, 0) for token in ids)}))


def anthropic(refused: Refused) -> Refused:
    """The same refusal, in Anthropic's shape."""
    error = msgspec.json.decode(refused.body)["error"]
    refused.body = msgspec.json.encode({"type": "error", "error": {"type": error["type"], "message": error["message"]}})
    return refused


PREFIXES: dict[type[Generation], str] = {ResponseGeneration: "resp", EmbeddingGeneration: "embd"}
"""How the ids of these begin."""
ROUTES: dict[str, tuple[str, Callable[[Any, HttpRequest, HttpConnection], None]]] = {
    "/v1/responses": ("POST", respond),
    "/v1/messages": ("POST", message),
    "/v1/messages/count_tokens": ("POST", count_tokens),
    "/v1/embeddings": ("POST", embed),
    "/tokenize": ("POST", tokenize),
    "/detokenize": ("POST", detokenize),
}

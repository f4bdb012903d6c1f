"""What a request asks the fake engine for: parsed, checked and refused as vLLM 0.32.0 does (observed 2026-11-30).

The wording is the fake's own; status, `type`, `param` and the numbers in the text are those of the real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headworks.testing.fake.tokenizer import VOCABULARY, tokens_of

COMPLETION_TOKENS_DEFAULT = 16
NOT_TEXT = ("image_url", "input_audio", "input_image", "image")
PLACEHOLDER = 5
"""Token that stands where an image was."""
SAMPLES_MAX = 1024


class Refused(Exception):
    """An answer that is not a generation."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None, retry_after: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = (("retry-after", retry_after),) if retry_after else ()
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


def busy(retry_after: str = "") -> Refused:
    """The answer at the queue limit: plain, also for streams, and without a hint when to come back unless a proxy adds one."""
    return Refused(503, BUSY, "Service Unavailable", retry_after=retry_after)


@dataclass(slots=True)
class Asked:
    """One generation, with its limits applied."""

    chat: bool
    prompts: list[list[int]]
    samples: int
    output_tokens: list[int]
    """Per prompt: what each of its samples may produce."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    ignore_eos: bool
    output_tokens_min: int
    salt: str
    dimensions: int = 0
    as_base64: bool = False
    """How an embedding is to be written."""


def decode(body: bytes, content_type: str) -> dict[str, Any]:
    """The body as an object."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refused(400, "Unsupported media type: only 'application/json' is allowed", "Bad Request")
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"1 validation error: the body is not JSON: {error}", "Bad Request", "body") from None
    if not isinstance(decoded, dict):
        raise Refused(400, "1 validation error: the body should be an object", "Bad Request", "body")
    return decoded


def parse(chat: bool, fields: dict[str, Any], model: str, context_tokens: int, part_tokens: int = 0) -> Asked:
    """Everything the engine checks before it takes a request in."""
    if fields.get("model", model) != model:
        raise Refused(404, f"The model `{fields['model']}` does not exist. Valid aliases: {model}.", "NotFoundError", "model")
    stream = bool(fields.get("stream"))
    options = fields.get("stream_options") or {}
    if options and not stream:
        raise Refused(400, "stream_options can only be given with `stream=True`", param="stream_options")
    samples = _integer(fields, "n")
    if samples is not None and not 1 <= samples <= SAMPLES_MAX:
        raise Refused(400, f"n must be at least 1 and at most {SAMPLES_MAX}, got {samples}.")
    if fields.get("use_beam_search"):
        raise Refused(400, "beam search is not modelled by the fake engine", param="use_beam_search")
    limit, limit_name = _limit(chat, fields, context_tokens)
    output_tokens_min = _integer(fields, "min_tokens") or 0
    if limit is not None and output_tokens_min > limit:
        raise Refused(400, f"min_tokens must be less than or equal to max_tokens={limit}, got {output_tokens_min}.")
    prompts = prompts_of(chat, fields, part_tokens)
    return Asked(
        chat=chat,
        prompts=prompts,
        samples=samples or 1,
        output_tokens=[_room(len(prompt), limit, limit_name, context_tokens) for prompt in prompts],
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        ignore_eos=bool(fields.get("ignore_eos")),
        output_tokens_min=output_tokens_min,
        salt=str(fields.get("cache_salt") or ""),
    )


def _limit(chat: bool, fields: dict[str, Any], context_tokens: int) -> tuple[int | None, str]:
    """The client's limit on output tokens, and the name of the field that set it."""
    name = "max_completion_tokens" if chat and fields.get("max_completion_tokens") is not None else "max_tokens"
    limit = _integer(fields, name)
    if limit is None:
        return (None if chat else COMPLETION_TOKENS_DEFAULT), name
    if limit < 1:
        raise Refused(400, f"{name} must be at least 1, got {limit}. (parameter={name}, value={limit})", param=name)
    if limit > context_tokens:
        text = f"{name}={limit} cannot be greater than max_model_len={context_tokens}. Ask for fewer output tokens."
        raise Refused(400, f"{text} (parameter={name}, value={limit})", param=name)
    return limit, name


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(400, f"1 validation error: {name} should be a valid integer", "Bad Request", f"body.{name}")
    return value


def prompts_of(chat: bool, fields: dict[str, Any], part_tokens: int = 0) -> list[list[int]]:
    """The prompts as token ids. `truncate_prompt_tokens` keeps the last so many."""
    prompts = [_chat_prompt(fields, part_tokens)] if chat else _completion_prompts(fields.get("prompt"))
    keep = _integer(fields, "truncate_prompt_tokens")
    return prompts if keep is None else [prompt[-keep:] for prompt in prompts]


def _chat_prompt(fields: dict[str, Any], part_tokens: int) -> list[int]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "The conversation is empty: give at least one message.")
    ids: list[int] = []
    for message in messages:
        ids.append(3)
        ids += [PLACEHOLDER] * part_tokens * _parts(message, part_tokens)
        ids += tokens_of(_text(message, part_tokens))
    if fields.get("tools"):
        ids += tokens_of(msgspec.json.encode(fields["tools"]).decode())
    return [*ids, 4]


def _parts(message: Any, part_tokens: int) -> int:
    """How many of its parts are no text, where the model reads such."""
    content = message.get("content") if isinstance(message, dict) and part_tokens else None
    return sum(part.get("type") in NOT_TEXT for part in content) if isinstance(content, list) else 0


def _text(message: Any, part_tokens: int) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if part_tokens and isinstance(content, list):
        content = [part for part in content if part.get("type") not in NOT_TEXT]
    if not isinstance(content, list) or not all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        raise Refused(400, "only text content is supported by this model", param="messages")
    return "".join(part["text"] for part in content)


def _completion_prompts(prompt: Any) -> list[list[int]]:
    if isinstance(prompt, str) and prompt:
        return [tokens_of(prompt)]
    if prompt == []:
        raise Refused(400, "You must pass at least one prompt")
    if isinstance(prompt, list) and all(_is_id(item) for item in prompt):
        return [_checked_ids(prompt)]
    if isinstance(prompt, list) and all(isinstance(item, str) and item for item in prompt):
        return [tokens_of(item) for item in prompt]
    if isinstance(prompt, list) and all(isinstance(item, list) and item and all(map(_is_id, item)) for item in prompt):
        return [_checked_ids(item) for item in prompt]
    raise Refused(400, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt")


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _checked_ids(ids: list[int]) -> list[int]:
    for token in ids:
        if not 0 <= token < VOCABULARY:
            raise Refused(400, f"Token id {token} is out of vocabulary")
    return ids


def _room(prompt_tokens: int, limit: int | None, limit_name: str, context_tokens: int) -> int:
    """The limit, silently clamped to what the context leaves."""
    if prompt_tokens > context_tokens:
        text = f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains {prompt_tokens}"
        raise Refused(400, f"{text} input tokens. (parameter=input_tokens, value={prompt_tokens})", param="input_tokens")
    left = context_tokens - prompt_tokens
    if left == 0:
        raise Refused(400, f"{limit_name} must be at least 1, got 0. (parameter={limit_name}, value=0)", param=limit_name)
    return left if limit is None else min(left, limit)

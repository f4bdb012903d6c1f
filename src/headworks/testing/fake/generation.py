"""One request inside the fake engine: what its sequences make becomes events or one body, as vLLM writes them.

The seconds of a stream: a chat opens with a chunk that carries only the role; then a chunk for each report of a
sequence, the last one with its `finish_reason`; then, when asked for, a chunk with the usage and no choices; then
`[DONE]`. `[DONE]` also follows an error event, so it proves nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headworks.testing.fake.asked import Asked, Refused
from headworks.testing.fake.http import HttpConnection
from headworks.testing.fake.tokenizer import word

FINGERPRINT = "fake-engine"
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Fault:
    """What a test wants to go wrong with one answer, after `after_tokens` output tokens."""

    kind: str
    """`garbage` (not HTTP), `error` (error event, then `[DONE]`; 500 when not streaming), `break` (reset)."""
    after_tokens: int


@dataclass(slots=True)
class Choice:
    """One sequence as its client sees it."""

    index: int
    prompt_tokens: int
    output_tokens: int
    reason: str
    """The finish reason when all of them are made: `length` or `stop`."""
    seed: int
    made: int = 0
    text: list[str] = field(default_factory=list)
    ended: str = ""


@dataclass(slots=True, eq=False)
class Generation:
    """Answers one request. Ends once: `on_ended` is called when its client has the last byte it will get."""

    id: str
    asked: Asked
    connection: HttpConnection
    model: str
    created: int
    request_id: str
    """The caller's `X-Request-Id`, or one minted for it."""
    submitted_s: float
    """On the model's clock."""
    choices: dict[tuple[str, int], Choice]
    """By the execution inside the model, and its sample."""
    fault: Fault | None
    on_ended: Callable[[Generation], None]
    head_at_once: bool = True
    """A stream's head goes out when it was taken in; False: with its first token."""
    done_after_error: bool = True
    usage_each: bool = False
    """Each choice of a stream states what it alone used; an answer in one piece states the first one's."""
    made: int = 0
    ended: bool = False
    _opened: bool = False
    _head_sent: bool = False
    _events: list[bytes] = field(default_factory=list)

    @property
    def generates(self) -> bool:
        """It is not only read."""
        return any(self.asked.output_tokens)

    def executions(self) -> list[str]:
        """The model's executions, one per prompt."""
        return list(dict.fromkeys(execution for execution, _ in self.choices))

    def more(self, execution: str, sample: int, count: int) -> None:
        """A sequence made `count` more tokens. Written by `flush`."""
        if self.ended:
            return
        choice = self.choices[execution, sample]
        words = [word(choice.seed, choice.made + offset) for offset in range(count)]
        choice.made += count
        self.made += count
        if choice.made == choice.output_tokens:
            choice.ended = choice.reason
        fault = self.fault if self.fault is not None and self.made >= self.fault.after_tokens else None
        if fault is not None and fault.kind == "garbage":
            self._end()
            self.connection.garble()
            return
        if self.asked.stream:
            self._open()
            self._events += [self._chunk(choice, "".join(words)), *self._usage_apart(choice)]
        else:
            choice.text += words
        if fault is not None:
            self._go_wrong(fault.kind)

    def flush(self) -> None:
        """Write what came together since the last time, and end when every sequence has."""
        if self.ended:
            return
        if all(choice.ended for choice in self.choices.values()):
            self._finish()
        elif self._events and not self._is_garbage:
            self._send()

    def begin(self) -> None:
        """It was taken in. Where a stream's head goes out now, long before there is a token, it proves nothing but that."""
        if self.head_at_once and self.asked.stream and not self._is_garbage:
            self._send_head()

    @property
    def _is_garbage(self) -> bool:
        """It will come in the place of a head, so nothing may go out before."""
        return self.fault is not None and self.fault.kind == "garbage"

    def _send_head(self) -> None:
        if not self._head_sent:
            self._head_sent = True
            self.connection.start_stream()

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        if self.asked.chat:
            for choice in self.choices.values():
                delta = {"role": "assistant", "content": ""}
                self._events.append(self._event(choice, {"index": choice.index, "delta": delta, "logprobs": None}, 0))

    def _chunk(self, choice: Choice, text: str) -> bytes:
        body: dict[str, Any] = {"index": choice.index}
        body |= {"delta": {"content": text}} if self.asked.chat else {"text": text}
        body |= {"logprobs": None, "finish_reason": choice.ended or None}
        return self._event(choice, body, choice.made)

    def _usage_apart(self, choice: Choice) -> list[bytes]:
        """What the one that has just ended used, where each says so: a chat in an event of its own, if it was asked for."""
        if not (self.usage_each and choice.ended and self.asked.chat and self.asked.include_usage):
            return []
        event = self._envelope(self._kind, []) | {"usage": _usage(choice.prompt_tokens, choice.made)}
        return [b"data: %b\n\n" % msgspec.json.encode(event)]

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.asked.chat else "text_completion"

    def _event(self, choice: Choice, body: dict[str, Any], made: int) -> bytes:
        body.setdefault("finish_reason", None)
        event = self._envelope(self._kind, [body])
        beside = self.usage_each and choice.ended and not self.asked.chat
        if beside or (self.asked.continuous_usage and self.asked.include_usage):
            event["usage"] = _usage(choice.prompt_tokens, made)
        return b"data: %b\n\n" % msgspec.json.encode(event)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _send(self) -> None:
        events, self._events = self._events, []
        self._send_head()
        self.connection.send(events)

    def _finish(self) -> None:
        self._end()
        if self.asked.stream:
            if self.asked.include_usage and not self.usage_each:
                event = self._envelope(self._kind, [])
                event |= {"usage": self.usage(), "system_fingerprint": FINGERPRINT}
                self._events.append(b"data: %b\n\n" % msgspec.json.encode(event))
            self._events.append(DONE)
            self._send()
            self.connection.end_stream()
            return
        choices = [self._whole(choice) for choice in self.choices.values()]
        body = self._envelope("chat.completion" if self.asked.chat else "text_completion", choices)
        body |= {"system_fingerprint": FINGERPRINT, "usage": self.usage() | {"prompt_tokens_details": None}}
        self.connection.respond(200, msgspec.json.encode(body))

    def _whole(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        body: dict[str, Any] = {"index": choice.index}
        body |= {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
        return body | {"logprobs": None, "finish_reason": choice.ended, "stop_reason": None}

    def usage(self) -> dict[str, int]:
        """Each prompt once, however many samples it has: the engine's own counters charge it for each."""
        if self.usage_each:
            first = next(iter(self.choices.values()))
            return _usage(first.prompt_tokens, first.made)
        return _usage(sum(len(prompt) for prompt in self.asked.prompts), sum(one.made for one in self.choices.values()))

    def aborted(self) -> None:
        """Stopped by an abort call while the client still listens: a chunk that says so, unless nothing was begun."""
        if self.ended:
            return
        for choice in self.choices.values():
            if not choice.ended:
                choice.ended = "abort"
                if self.asked.stream and self._opened:
                    self._events += [self._chunk(choice, ""), *self._usage_apart(choice)]
        self._finish()

    def failed(self, message: str) -> None:
        """The engine cannot go on with it."""
        if self.ended:
            return
        self._end()
        error = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
        if not self.asked.stream or not (self._head_sent or self._events):
            self.connection.respond(500, msgspec.json.encode(error))
            return
        self._events += [b"data: %b\n\n" % msgspec.json.encode(error), *([DONE] if self.done_after_error else [])]
        self._send()
        self.connection.end_stream()

    def _go_wrong(self, kind: str) -> None:
        if kind == "error":
            self.failed("The engine met a problem and cannot go on with this request.")
            return
        if self._events:
            self._send()
        self._end()
        self.connection.reset()

    def client_left(self) -> None:
        """Nobody reads any more."""
        if not self.ended:
            self._end()

    def cut_off(self) -> None:
        """Nobody reads any more, and what there is of the answer ends by its own framing: of one without a head, nothing."""
        if self._head_sent:
            self.connection.end_stream()
        else:
            self.connection.respond(200, b"")

    def _end(self) -> None:
        self.ended = True
        self.on_ended(self)


def choices_of(asked: Asked, request_id: str, serial: int, natural_tokens: int | None) -> dict[tuple[str, int], Choice]:
    """Sequences in the order of their choices: prompt by prompt, sample by sample."""
    choices: dict[tuple[str, int], Choice] = {}
    for number, prompt in enumerate(asked.prompts):
        limit = asked.output_tokens[number]
        tokens, reason = limit, "length"
        if natural_tokens is not None and not asked.ignore_eos and max(natural_tokens, asked.output_tokens_min) < limit:
            tokens, reason = max(natural_tokens, asked.output_tokens_min), "stop"
        # A reused request id is not refused by the real engine either: it appends something of its own.
        execution = f"{request_id}-{number}-{serial:08x}"
        for sample in range(asked.samples):
            seed = (sum(prompt) * 31 + sample) & 0xFFFFFFFF
            choices[execution, sample] = Choice(len(choices), len(prompt), tokens, reason, seed)
    return choices


def refuse_inside(connection: HttpConnection, refused: Refused) -> None:
    """A refusal that comes when the stream's head is out already: an error event, then `[DONE]`."""
    connection.start_stream()
    connection.send([b"data: %b\n\n" % refused.body, DONE])
    connection.end_stream()


def _usage(prompt_tokens: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + made, "completion_tokens": made}

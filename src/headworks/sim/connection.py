"""One execution's way from a gateway to an engine process: what is sent, who is told, how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headworks.core.types import Usage


class Listener(Protocol):
    """Who is told what became of an execution; the words are those of `engines.base.Listener`."""

    def on_not_sent(self, execution: str, reason: str) -> None: ...

    def on_first_byte(self, execution: str) -> None: ...

    def on_progress(self, execution: str, output_tokens: int) -> None: ...

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None: ...

    def on_lost(self, execution: str, cause: str) -> None: ...

    def on_closed(self, execution: str) -> None: ...


@dataclass(slots=True)
class Sending:
    """What is sent to the engine. `output_tokens` is what the model will produce: the smaller of truth and limit."""

    execution: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int
    samples: int
    prefix: tuple[int, ...]
    send_before_s: float
    watch_tokens: int = 0
    """Its progress is to be told as soon as so many output tokens are made; 0: now and then."""


@dataclass(slots=True)
class Distance:
    """How far the engine is away."""

    connect_s: float = 0.0
    latency_s: float = 0.0
    """One way, for bytes of a request or an answer."""
    scrape_s: float = 0.0
    """From the start of a scrape to its answer. The gauges are those of its middle."""
    scrape_s_max: float = 0.0
    """Where it is more than `scrape_s`, a scrape takes a random time between the two."""
    notice_s: float = 2.0
    """An engine notices within so much time that a connection broke on the way."""


class Connection:
    """One execution's way in. `listener` is None once the gateway's side is gone."""

    __slots__ = (
        "begun_s",
        "closing",
        "held_until_s",
        "listener",
        "output_tokens",
        "sending",
        "state",
        "told_s",
        "watch_tokens",
    )

    def __init__(self, sending: Sending, listener: Listener) -> None:
        self.sending = sending
        self.listener: Listener | None = listener
        self.state = "connecting"
        """`connecting`, `written` (bytes are out), `inside` (the engine took it), `over`."""
        self.closing = False
        self.held_until_s = 0.0
        """Its gateway stands, or stood, still so long: nothing is written before, and what it did meanwhile nobody heard."""
        self.begun_s = 0.0
        self.told_s = -1.0
        self.output_tokens = 0
        self.watch_tokens = sending.watch_tokens

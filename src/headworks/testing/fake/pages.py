"""The small pages of the fake engine, answered at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from headworks.testing.fake.asked import decode, prompts_of
from headworks.testing.fake.exposition import damaged, exposition
from headworks.testing.fake.http import HttpConnection, HttpRequest

if TYPE_CHECKING:
    from headworks.testing.fake_engine import FakeEngine


def models(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    card = {"id": engine.settings.model_name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
    card |= {"root": engine.settings.model_name, "parent": None, "max_model_len": engine.settings.context_tokens}
    connection.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))


def metrics(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    lines = exposition(
        engine.model, engine.gauges(), engine.counters, engine.settings.model_name, engine.settings.context_tokens
    )
    lines = damaged(lines, engine.faults.dropped_series, engine.faults.renamed_series)
    connection.respond(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=1.0.0; charset=utf-8")


def health(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    """Not a proof of life: a hung or draining engine says 200."""
    connection.respond(503 if engine.faults.core_dead else 200, b"")


def version(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    connection.respond(200, msgspec.json.encode({"version": engine.settings.version}))


def tokenize(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    fields = decode(request.body, request.headers.get("content-type", ""))
    ids = prompts_of("messages" in fields, fields)[0]
    answer = {"count": len(ids), "max_model_len": engine.settings.context_tokens, "tokens": ids, "token_strs": None}
    connection.respond(200, msgspec.json.encode(answer))


def abort_requests(engine: FakeEngine, request: HttpRequest, connection: HttpConnection) -> None:
    """Answers with the number of ids *sent*, known or not, before anything has stopped."""
    ids = decode(request.body, "application/json").get("request_ids") or []
    for generation in dict.fromkeys(engine._generations.values()):
        own = (
            [generation.id] if generation.asked.chat else [f"{generation.id}-{n}" for n in range(len(generation.asked.prompts))]
        )
        if not ids or set(own) & set(ids):
            generation.aborted()
    connection.respond(200, msgspec.json.encode({"status": "aborted", "aborted": len(ids)}))

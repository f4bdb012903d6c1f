"""What may be made of a body under pressure, and the body that comes of it (E5).

Only of routes whose answer stays one of the same kind when the model, the number of samples or the examples before the last
message are others: text that is written. What a request is made to be is decided in `core/fallback.py`; here it is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from headworks.core.types import Leeway, Variant
from headworks.gateway.dialects import chat, completions, messages, responses
from headworks.gateway.dialects.base import NO_PARTS, Parsed, Raws, Route
from headworks.gateway.dialects.chat_fields import ChatFields
from headworks.gateway.dialects.fields import SharedFields

ROUTES: dict[str, Route[Any]] = {
    route.path: route for route in (chat.ROUTE, completions.ROUTE, messages.ROUTE, responses.ROUTE)
}
_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])


def leeway(parsed: Parsed, strips: bool, is_kept: bool) -> Leeway | None:
    """How far this body can give way; None: not at all. `strips`: it matters what its examples take."""
    if parsed.path not in ROUTES or parsed.parts is not NO_PARTS:  # another model has other prices for its parts
        return None
    prompt_bytes = parsed.prompt_bytes
    if strips and isinstance(parsed.asked, ChatFields):
        prompt_bytes = min(prompt_bytes, chat.size_without_examples(parsed.asked, parsed.raws))
    return Leeway(parsed.prompts, prompt_bytes, is_kept)


def applied(parsed: Parsed, variant: Variant) -> Parsed:
    """The same request as it is to be sent."""
    asked, raws, samples, model = parsed.asked, dict(parsed.raws), parsed.samples, parsed.model
    if variant.model:
        model = variant.model
        raws["model"] = msgspec.Raw(msgspec.json.encode(model))
    if variant.drops_n and isinstance(asked, SharedFields):
        asked = msgspec.structs.replace(asked, n=None)
        raws.pop("n", None)
        samples = parsed.prompts
    if variant.strips and isinstance(asked, ChatFields):
        kept = chat.without_examples(asked)
        messages = _MESSAGES.decode(raws["messages"])
        raws["messages"] = msgspec.Raw(b"[" + b",".join([bytes(messages[index]) for index in kept]) + b"]")
    return replace(
        parsed, asked=asked, raws=raws, samples=samples, model=model, forwarded=_forwarded(ROUTES[parsed.path], raws)
    )


def _forwarded(route: Route[Any], raws: Raws) -> bytes:
    """The fields that go upstream, each with its comma (`base.read`)."""
    pieces = [route.keys[name] + bytes(raw) + b"," for name, raw in raws.items() if name in route.keys and raw != b"null"]
    return b"".join(pieces)

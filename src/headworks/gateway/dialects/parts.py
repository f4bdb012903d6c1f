"""Images and audio in a prompt: what they take, by a rule of their model's, or why they are not taken (C1, E1).

Nobody but the model knows how many tokens become of a picture, so an operator states the most (`models.NAME.image`,
`models.NAME.audio`) and, where that goes by its size, what a square of so many pixels takes; without a rule they are refused.
They are taken in the body alone: what is named by a URL an engine would fetch, from wherever it says. Their base64 is no text:
it is counted as no prompt, and as what waits in a queue in full.

Audio is priced by how long it lasts, which a WAV file says in its first bytes: frames are what its data can hold at most, at
the rate and width at which any decoder will read it. Other formats would have to be decoded to know.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable
from dataclasses import replace

from headworks.config.settings import PartPrices
from headworks.core.prompt_sizes import TEMPLATE_TOKENS
from headworks.core.types import Request
from headworks.gateway.dialects.base import NO_PARTS, Limits, Parsed, Parts
from headworks.gateway.dialects.chat_fields import AudioPart, ChatFields, ImagePart, User
from headworks.gateway.dialects.fields import FAULT_TEXT_MAX, Unacceptable, invalid
from headworks.gateway.dialects.image_sizes import size_of
from headworks.gateway.dialects.messages_fields import CountFields, Image
from headworks.gateway.dialects.responses_fields import InputImage, ResponseFields

PARTS = "parts"
"""The kind of a prompt that has such parts: no size is learnt from it, as text is not what most of it is."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
WAV_HEAD_CHARS = 64
"""Base64 of a WAV file's first 48 bytes: the file's head, and all that says how wide and how fast its frames are."""
PCM, FLOAT = 1, 3
SAMPLE_BITS = (8, 16, 24, 32, 64)

Found = Iterable[tuple[str, ImagePart | AudioPart | InputImage | Image]]
"""Parts that are not text, each with its place in the body."""


def of_chat(asked: ChatFields) -> Found:
    """In what a person says; nowhere else are they known."""
    for index, message in enumerate(asked.messages):
        if type(message) is User and type(message.content) is list:
            for number, part in enumerate(message.content):
                if type(part) is ImagePart or type(part) is AudioPart:
                    yield f"messages[{index}].content[{number}]", part


def of_responses(asked: ResponseFields) -> Found:
    """In a message, and in what a tool answered."""
    for index, item in enumerate(asked.input if type(asked.input) is list else ()):
        for field, content in (("content", item.content), ("output", item.output), ("summary", item.summary)):
            for number, part in enumerate(content if type(content) is list else ()):
                if type(part) is InputImage:
                    yield f"input[{index}].{field}[{number}]", part


def of_messages(asked: CountFields) -> Found:
    """In a message; not in what a tool answered."""
    for index, message in enumerate(asked.messages):
        for number, block in enumerate(message.content if type(message.content) is list else ()):
            if type(block) is Image:
                yield f"messages[{index}].content[{number}]", block


def priced(parsed: Parsed, found: Found, limits: Limits) -> Parsed:
    """The request with what its parts take; the same where it has none. Raises `Unacceptable` for those nobody priced."""
    tokens = data_bytes = images = 0
    for where, part in found:
        prices = limits.parts.get(parsed.model, NO_PRICES)
        if isinstance(part, AudioPart):
            tokens += _audio_tokens(part, prices, parsed.model, where)
            data_bytes += len(part.input_audio.data)
            continue
        if prices.image_tokens is None:
            raise _unpriced("an image", parsed.model, "image", where)
        images += 1
        if images > prices.images_max:
            raise invalid(f"{where}: {prices.images_max} images are allowed in one request.", where)
        data, begin, is_low = _image(part, where)
        low = prices.image_low_tokens if is_low else None
        tokens += _image_tokens(data, begin, prices, prices.image_tokens) if low is None else low
        data_bytes += len(data)
    if not tokens:
        return parsed
    if parsed.prompt_tokens is not None:
        raise invalid("truncate_prompt_tokens cuts text, not images or audio.", "truncate_prompt_tokens")
    return replace(parsed, parts=Parts(tokens, data_bytes))


def sized(request: Request, parsed: Parsed, text_tokens: int | None = None) -> Request:
    """The request as it is sized: its text by its bytes or as counted, its template, and its parts by their rule."""
    parts = parsed.parts
    if parts is NO_PARTS:
        return request
    text_tokens = parsed.prompt_bytes if text_tokens is None else text_tokens
    tokens = text_tokens + TEMPLATE_TOKENS + parts.tokens
    return replace(request, prompt_bytes=parsed.prompt_bytes + parts.data_bytes, prompt_tokens=tokens, prompt_kind=PARTS)


NO_PRICES = PartPrices()


def _unpriced(what: str, model: str, key: str, where: str) -> Unacceptable:
    text = f"{where}: only text is accepted here: nothing says what {what} takes (models.{model[:FAULT_TEXT_MAX]}.{key})."
    return invalid(text, where)


def _image_tokens(data: str, begin: int, prices: PartPrices, most: int) -> int:
    """By its size, where that is the rule and it says it; never more than the most."""
    size = None if prices.image_tile_px is None else size_of(data, begin)
    if size is None or prices.image_tile_px is None:
        return most
    tiles = -(-size[0] // prices.image_tile_px) * -(-size[1] // prices.image_tile_px)
    tokens = prices.image_base_tokens + tiles * prices.image_tile_tokens
    return min(most, max(prices.image_least_tokens, tokens))


def _image(part: ImagePart | InputImage | Image, where: str) -> tuple[str, int, bool]:
    """Its data and where in it the base64 begins, and whether it is wanted in its smaller form."""
    if isinstance(part, Image):
        return part.source.data, 0, False
    url, detail = (part.image_url, part.detail) if isinstance(part, InputImage) else (part.image_url.url, part.image_url.detail)
    head, comma, _ = url[:FAULT_TEXT_MAX].partition(",")
    if not comma or head.lower() not in _HEADS:
        kinds = ", ".join(IMAGE_TYPES)
        text = f"{where}: an image is sent in the body, as data:TYPE;base64,… with one of {kinds}; nothing is fetched."
        raise invalid(text, where)
    return url, len(head) + 1, detail == "low"


_HEADS = frozenset(f"data:{kind};base64" for kind in IMAGE_TYPES)


def _audio_tokens(part: AudioPart, prices: PartPrices, model: str, where: str) -> int:
    if prices.audio_tokens_per_s is None:
        raise _unpriced("audio", model, "audio", where)
    seconds = _wav_s(part, where)
    if seconds > prices.audio_s_max:
        raise invalid(f"{where}: {seconds:.1f} s of audio; {prices.audio_s_max:g} s are allowed.", where)
    return max(1, math.ceil(seconds * prices.audio_tokens_per_s))


def _wav_s(part: AudioPart, where: str) -> float:
    """How long it lasts at most."""
    audio = part.input_audio
    try:
        head = base64.b64decode(audio.data[:WAV_HEAD_CHARS], validate=True)
        riff, wave, form, channels, frames_per_s, _, frame_bytes, bits = struct.unpack_from("<4s4x4s4x4xHHIIHH", head)
    except (binascii.Error, struct.error, ValueError):
        raise invalid(f"{where}: the audio is no WAV file in base64.", where) from None
    plain = riff == b"RIFF" and wave == b"WAVE" and head[12:16] == b"fmt " and form in (PCM, FLOAT)
    if not plain or bits not in SAMPLE_BITS or not frames_per_s or not channels or frame_bytes * 8 != channels * bits:
        raise invalid(f"{where}: the audio is no plain WAV file: its length cannot be told.", where)
    seconds: float = len(audio.data) * 3 / 4 / frame_bytes / frames_per_s
    return seconds

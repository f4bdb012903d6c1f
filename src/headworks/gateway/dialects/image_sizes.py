"""How large a picture says it is, in its file's first bytes: PNG, JPEG, WebP and GIF, without a decoder (C1).

Every decoder believes these fields, so what is read here is what a model is given. Layouts: PNG (W3C, 2003) 11.2.2; GIF89a 18
and 20; RFC 9649 (WebP) 2.5 to 2.7 with RFC 6386 9.1; ITU-T T.81 (JPEG) B.1.1 and B.2.2. What a file is, its bytes say, and not
the type that was declared for it. None: it says nothing that can be believed, and may be as large as any.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable

HEAD_CHARS = (1_024, 65_536, 524_288)
"""Base64 characters that are looked at, one step after the other: a JPEG may begin with a profile and a picture of itself. All
from the beginning and strictly, as a character that a decoder skips would move what comes after it."""

STEPS_MAX = 4_096
"""Segments, or blocks of an extension, that are gone through: what is made of more is there to keep us busy."""

Size = tuple[int, int]
PNG = b"\x89PNG\r\n\x1a\n"
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame's head; the three are tables and a reserved one."""
JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""
JPEG_SCAN, JPEG_END = 0xDA, 0xD9
GIF_EXTENSION, GIF_IMAGE = 0x21, 0x2C


def size_of(data: str, begin: int = 0) -> Size | None:
    """Width and height of the picture whose base64 begins there."""
    for chars in HEAD_CHARS:
        try:
            head = base64.b64decode(data[begin : begin + chars], validate=True)
        except (binascii.Error, ValueError):
            return None
        try:
            size = _read(head)
        except (struct.error, IndexError):  # it goes on behind what was looked at
            if begin + chars >= len(data):
                return None
            continue
        return size if size is not None and size[0] > 0 and size[1] > 0 else None
    return None


def _read(head: bytes) -> Size | None:
    for begin, read in READERS:
        if head.startswith(begin):
            return read(head)
    return None


def _png(head: bytes) -> Size | None:
    if head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _gif(head: bytes) -> Size | None:
    """Its screen, or more where its first image is larger: decoders make room for that."""
    width, height, flags = struct.unpack_from("<HHB", head, 6)
    at, steps = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0), 0
    while head[at] == GIF_EXTENSION:
        at += 2
        while head[at] and steps < STEPS_MAX:
            at, steps = at + 1 + head[at], steps + 1
        at, steps = at + 1, steps + 1
        if steps > STEPS_MAX:
            return None
    if head[at] != GIF_IMAGE:
        return None
    left, top, image_width, image_height = struct.unpack_from("<HHHH", head, at + 1)
    return max(width, left + image_width), max(height, top + image_height)


def _webp(head: bytes) -> Size | None:
    kind = head[12:16]
    if head[8:12] != b"WEBP":
        return None
    if kind == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", head, 24)
        return (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
    if kind == b"VP8L" and head[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(head: bytes) -> Size | None:
    """Past its tables and applications' segments, in which there may be whole other pictures, to the frame."""
    at = 2
    for _ in range(STEPS_MAX):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker in (JPEG_SCAN, JPEG_END):
            return None
        if marker == 0xFF:
            at += 1
        elif marker in JPEG_ALONE:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", head, at + 2)
            at += 2 + length
    return None


READERS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
    (PNG, _png),
    (b"\xff\xd8", _jpeg),
    (b"RIFF", _webp),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
)

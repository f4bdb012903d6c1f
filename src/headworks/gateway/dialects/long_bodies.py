"""Each field's own bytes, of a long body: what is long in it is text, and that need not be walked through once more.

A decoder looks at each byte of a string to find its end. In JSON that is known to be good a quote ends a string unless a
backslash escapes it, and quotes are found at thirty-two bytes a step. So long strings are taken out, the little that is left is
decoded, and each field gets back what was taken out of it (docs/decisions/0067-the-edge-once-more.md).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

LONG_BODY_BYTES = 4_096
LONG_STRING_BYTES = 512
BYTES_A_QUOTE = 128
"""A body with more quotes than one in so many bytes is decoded as it is: each costs about as much as walking so far."""
_BACKSLASH = 0x5C
_AROUND_FIELD = 4
"""Its name's quotes, its colon and its comma."""


def fields(decode: Callable[[bytes], dict[str, msgspec.Raw]], body: bytes) -> dict[str, msgspec.Raw]:
    """What `decode` makes of a body, which is known to be a good JSON object, without looking at every byte of it."""
    if len(body) < LONG_BODY_BYTES:
        return decode(body)
    cuts = _long_strings(body)
    if not cuts:
        return decode(body)
    pieces: list[bytes] = []
    position = 0
    for begin, end in cuts:
        pieces.append(body[position:begin])
        position = end
    pieces.append(body[position:])
    short = b"".join(pieces)
    found = decode(short)
    whole_bytes = 1
    for name, raw in found.items():
        whole_bytes += len(name) + _AROUND_FIELD + len(raw)
    if whole_bytes != len(short):  # there is white space, or a field twice: nobody can say where each stands
        return decode(body)
    position = 1
    cut = 0
    for name, raw in found.items():
        begin = end = position + len(name) + _AROUND_FIELD - 1
        end += len(raw)
        while cut < len(cuts) and cuts[cut][0] < end:
            end += cuts[cut][1] - cuts[cut][0]
            cut += 1
        if end - begin != len(raw):
            found[name] = msgspec.Raw(body[begin:end])
        position = end + 1
    return found


def _long_strings(body: bytes) -> list[tuple[int, int]]:
    """Where the insides of its long strings are; none where there are so many quotes that they are not worth finding."""
    found: list[tuple[int, int]] = []
    begin = body.find(b'"') + 1
    for _ in range(len(body) // BYTES_A_QUOTE):
        end = _end_of_string(body, begin)
        if end - begin >= LONG_STRING_BYTES:
            found.append((begin, end))
        begin = body.find(b'"', end + 1) + 1
        if begin == 0:
            return found
    return []


def _end_of_string(body: bytes, begin: int) -> int:
    """Its closing quote: one before which there is no backslash, or an even number of them."""
    end = body.find(b'"', begin)
    while body[end - 1] == _BACKSLASH:
        escapes = 1
        while body[end - 1 - escapes] == _BACKSLASH:
            escapes += 1
        if escapes % 2 == 0:
            break
        end = body.find(b'"', end + 1)
    return end
